package idem_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// What a server does all day makes no garbage. (That of the hot record is in TestHotRecord.)
func TestAllocations(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // should a mismatch wait by mistake
	defer cancel()
	buf := make([]byte, 0, 100_000)
	body := make([]byte, 200)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprintf("%036d", i)
	}
	open := func(t *testing.T) rig {
		r := newRig(t, idem.Config{Shards: 1})
		r.done("done", string(body), time.Hour)
		r.done("large", string(buf[:50_000]), time.Hour)
		r.fresh("claimed", time.Hour)
		return r
	}
	want := func(t *testing.T, r rig, req idem.Request, state idem.State) {
		req.Buf = buf
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			if out, err := r.Begin(ctx, req); err != nil || out.State != state {
				t.Fatal(out.State, err)
			}
		}))
	}
	t.Run("replay into a buffer", func(t *testing.T) {
		want(t, open(t), idem.Request{Key: "done"}, idem.Replay)
	})
	t.Run("large replay into a buffer", func(t *testing.T) {
		want(t, open(t), idem.Request{Key: "large"}, idem.Replay)
	})
	t.Run("in progress", func(t *testing.T) {
		want(t, open(t), idem.Request{Key: "claimed"}, idem.InProgress)
	})
	t.Run("mismatch", func(t *testing.T) {
		r := open(t)
		want(t, r, idem.Request{Key: "done", Fingerprint: idem.Fingerprint{1}}, idem.Mismatch)
		want(t, r, idem.Request{Key: "claimed", Fingerprint: idem.Fingerprint{1}, Wait: true}, idem.Mismatch)
	})
	t.Run("replay without a buffer allocates the body alone", func(t *testing.T) {
		r := open(t)
		n := testing.AllocsPerRun(1000, func() { _, _ = r.Begin(ctx, idem.Request{Key: "done"}) })
		require.Equal(t, 1, int(n))
	})
	t.Run("a claim that is extended and abandoned", func(t *testing.T) {
		r := open(t)
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			out, err := r.Begin(ctx, idem.Request{Key: "k"})
			if err != nil || out.State != idem.Fresh || r.Extend(ctx, out.Claim, time.Minute) != nil || r.Abandon(ctx, out.Claim) != nil {
				t.Fatal(out.State, err)
			}
		}))
	})
	t.Run("a life from Begin to the end of the TTL", func(t *testing.T) {
		r := open(t)
		i := 0
		life := func() {
			i++
			out, err := r.Begin(ctx, idem.Request{Key: keys[i%len(keys)]})
			if err != nil || out.State == idem.Fresh && r.Complete(ctx, out.Claim, idem.Response{Body: body, TTL: time.Microsecond}) != nil {
				t.Fatal(out.State, err)
			}
		}
		for range 5000 { // until as many are held as begin between two sweeps
			life()
		}
		require.Zero(t, testing.AllocsPerRun(10_000, life))
		require.NotZero(t, r.Stats().Expired)
	})
}
