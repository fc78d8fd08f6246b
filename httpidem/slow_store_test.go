package httpidem_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

// A store that hangs must not hold requests until their clients leave, and the log must say that it was the store.
func TestStoreThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		timeout, want time.Duration
		open          bool
		status        int
	}{
		"for 5 seconds":     {want: 5 * time.Second, status: 503},
		"for what is set":   {timeout: time.Second, want: time.Second, status: 503},
		"and may fail open": {timeout: time.Second, want: time.Second, open: true, status: 200},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			store := newFaultyStore(t, idem.Config{})
			h := guardWith(t, hangingBegin{store}, httpidem.Config{
				StoreTimeout: c.timeout, FailOpen: c.open, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			start := time.Now()
			require.Equal(t, c.status, post(t, h, "k", "").Code, name)
			require.Equal(t, c.want, time.Since(start), name)
			require.Contains(t, log.String(), fmt.Sprintf("hangingBegin, did not answer within %v (Config.StoreTimeout)", c.want), name)
			require.Contains(t, log.String(), "method=POST path=/payments", name)
		})
	}
}

// While a duplicate waits for the owner, the store has nothing to answer yet.
func TestWaitLongerThanTheStoreMayTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		runs := 0
		h := guardWith(t, store, httpidem.Config{StoreTimeout: time.Second, Wait: time.Minute})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			runs++
			time.Sleep(20 * time.Second)
		}))
		go post(t, h, "k", "")
		synctest.Wait()
		require.Equal(t, 200, post(t, h, "k", "").Code)
		require.Equal(t, 1, runs)
	})
}

// hangingBegin does not answer Begin before its context ends.
type hangingBegin struct{ idem.Store }

func (hangingBegin) Begin(ctx context.Context, _ idem.Request) (idem.Outcome, error) {
	<-ctx.Done()
	return idem.Outcome{}, ctx.Err()
}

// A store that fails while a duplicate waits is not asked once more, nor is the duplicate told to wait.
func TestStoreThatFailsWhileADuplicateWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, runs, begins := newFaultyStore(t, idem.Config{}), 0, 0
		store.OnBegin = func() error {
			if begins++; begins == 3 { // after the owner's, and the first look of the duplicate
				return httpcases.ErrDown
			}
			return nil
		}
		h := guardWith(t, store, httpidem.Config{Wait: time.Minute})(counted(&runs, func(http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }))
		done := make(chan struct{})
		go func() { defer close(done); post(t, h, "k", "") }()
		synctest.Wait()
		requireProblem(t, post(t, h, "k", ""), 503, httpidem.CodeStoreUnavailable)
		require.Equal(t, 3, begins, "it is not asked once more")
		<-done
		require.Equal(t, 1, runs)
	})
}

// A duplicate that waits for a request that runs is not run beside it, whatever the store comes to meanwhile.
func TestFailOpenDoesNotRunWhatIsKnownToRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		begins, runs := 0, 0
		store.OnBegin = func() error {
			if begins++; begins == 3 { // the duplicate has been told, and asks to wait
				return httpcases.ErrDown
			}
			return nil
		}
		h := guardWith(t, store, httpidem.Config{Wait: time.Minute, FailOpen: true})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			runs++
			time.Sleep(time.Second)
		}))
		done := make(chan struct{})
		go func() { defer close(done); post(t, h, "k", "a") }()
		synctest.Wait()
		requireProblem(t, post(t, h, "k", "a"), 503, httpidem.CodeStoreUnavailable)
		<-done
		require.Equal(t, 1, runs)
	})
}
