package idem_test

import (
	"bytes"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// Nobody calls when an owner has died: the logger is told, of all that happened at a time in one line, and of no keys.
func TestLogger(t *testing.T) {
	for policy, want := range map[idem.LeasePolicy]string{
		idem.TakeOver: "the operations may run again",
		idem.Hold:     "somebody has to resolve or forget them",
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			e, err := idem.New(idem.Config{OnLeaseExpiry: policy, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			require.NoError(t, err)
			var out idem.Outcome
			for _, key := range []string{"secret-1", "secret-2", "completed"} {
				out, err = e.Begin(t.Context(), idem.Request{Key: key, Lease: time.Minute})
				require.NoError(t, err)
				if key == "completed" {
					require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{}))
				}
			}
			time.Sleep(61 * time.Second)
			out, err = e.Begin(t.Context(), idem.Request{Key: "later"})
			require.NoError(t, err)
			require.NoError(t, e.Complete(t.Context(), out.Claim, idem.Response{TTL: time.Second}))
			time.Sleep(time.Minute)
			synctest.Wait()
			require.NoError(t, e.Close())
			require.Contains(t, log.String(), want)
			require.Contains(t, log.String(), "claims=2\n")
			require.NotContains(t, log.String(), "secret")
			require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), log.String())
		})
	}
}
