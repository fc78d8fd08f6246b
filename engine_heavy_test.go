package idem_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func TestHeavyStampede(t *testing.T) {
	for _, wait := range []bool{false, true} {
		stampede(t, 256, 10_000, wait)
	}
}

// keep makes n records of 200 bytes.
func (r rig) keep(n int, ttl time.Duration) {
	r.Helper()
	body := make([]byte, 200)
	for i := range n {
		out, err := r.Begin(r.Context(), idem.Request{Key: fmt.Sprintf("%036d", i)})
		if err != nil || out.State != idem.Fresh {
			r.Fatal(out.State, err)
		}
		if err := r.Complete(r.Context(), out.Claim, idem.Response{Body: body, TTL: ttl}); err != nil {
			r.Fatal(err)
		}
	}
}

func heap() int {
	var m runtime.MemStats
	for range 2 { // the second one frees what finalizers of the first let go
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Memory follows the number of live records, up and down, more than once.
func TestHeavySpike(t *testing.T) {
	const n = 2_000_000
	bubble(t, idem.Config{}, func(r rig) {
		r.keep(1000, time.Hour) // what an engine that has been used once holds at rest
		time.Sleep(gone(time.Hour))
		synctest.Wait()
		start := heap()
		for spike := range 2 {
			r.keep(n, time.Hour)
			require.Equal(r, n, r.Len())
			top := heap()
			require.Greater(r, top, start+n*250)
			require.InDelta(r, top-start, r.Stats().Bytes, float64(top)/20, "Bytes tells what is held")
			time.Sleep(gone(time.Hour))
			synctest.Wait()
			require.Zero(r, r.Len())
			require.LessOrEqual(r, heap(), start+start/10, "after spike %d", spike)
		}
	})
}

// A flood of keys that are used once each: what is held is what lives.
func TestHeavyFlood(t *testing.T) {
	const rate, seconds = 50_000, 20
	bubble(t, idem.Config{}, func(r rig) {
		for second := range seconds {
			for i := range rate {
				r.done(fmt.Sprintf("%d/%d", second, i), "body", time.Second)
			}
			time.Sleep(gone(time.Second))
			require.Zero(r, r.Len())
		}
		require.EqualValues(r, rate*seconds, r.Stats().Expired)
	})
}
