package idem_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func (r rig) snapshot() []byte {
	r.Helper()
	var b bytes.Buffer
	require.NoError(r, r.Snapshot(&b))
	return b.Bytes()
}

// restart ends the engine and returns another one that has its records, as the next process would.
func (r rig) restart(cfg idem.Config, down time.Duration) rig {
	r.Helper()
	saved := r.snapshot()
	require.NoError(r, r.Close())
	time.Sleep(down)
	next := newRig(r, cfg)
	require.NoError(r, next.Restore(bytes.NewReader(saved)))
	return next
}

func records(e *idem.Engine) map[string]idem.Record {
	all := map[string]idem.Record{}
	for rec := range e.All() {
		rec.Response.Header = append([]byte{}, rec.Response.Header...)
		all[rec.Scope+"/"+rec.Key] = rec
	}
	return all
}

// fillOneOfEach makes records of all states and sizes.
func fillOneOfEach(r rig) {
	body := func(n int) []byte { return bytes.Repeat([]byte{'b'}, n) }
	for name, resp := range map[string]idem.Response{
		"empty":     {},
		"plain":     {Status: 201, Header: []byte("h: v"), Body: body(200), TTL: time.Hour},
		"failed":    {Status: -1, Body: []byte("declined"), Failed: true},
		"truncated": {Status: 200, Truncated: true},
		"large":     {Body: body(300_000)},
		"for ever":  {TTL: 1<<63 - 1},
	} {
		c := r.begin(idem.Request{Scope: "s", Key: name, Fingerprint: idem.FingerprintOf([]byte(name))}).Claim
		require.NoError(r, r.Complete(r.Context(), c, resp))
	}
	r.fresh("in progress", time.Minute)
	r.begin(idem.Request{Scope: strings.Repeat("s", 255), Key: strings.Repeat("k", 255)})
}

// Whatever a record is, the next process has it as it was, and it ends when it would have.
func TestRestart(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		fillOneOfEach(r)
		time.Sleep(1234567 * time.Nanosecond)
		before := records(r.Engine)
		const down = 7 * time.Second
		next := r.restart(idem.Config{Shards: 2}, down)
		require.EqualValues(r, len(before), next.Stats().Restored)
		require.Equal(r, 2, next.Stats().InProgress)
		after := records(next.Engine)
		for name, rec := range before {
			rec.Remaining -= down
			got := after[name]
			require.WithinDuration(r, rec.Since, got.Since, 2*time.Microsecond, name)
			require.WithinDuration(r, rec.Response.StoredAt, got.Response.StoredAt, 2*time.Microsecond, name)
			got.Since, got.Response.StoredAt = rec.Since, rec.Response.StoredAt
			require.Equal(r, rec, got, name)
		}
		require.Len(r, after, len(before))
		left := after["s/plain"].Remaining
		time.Sleep(left - 1)
		replays := func() idem.State {
			return next.begin(idem.Request{Scope: "s", Key: "plain", Fingerprint: idem.FingerprintOf([]byte("plain"))}).State
		}
		require.Equal(r, idem.Replay, replays())
		time.Sleep(1)
		require.Equal(r, idem.Fresh, replays())
	})
}

func TestRestartWithClaims(t *testing.T) {
	t.Run("its owner completes it", func(t *testing.T) {
		bubble(t, idem.Config{}, func(r rig) {
			c := r.fresh("k", time.Minute)
			c = idem.Claim{Scope: c.Scope, Key: c.Key, Token: c.Token, Fingerprint: c.Fingerprint}
			next := r.restart(idem.Config{}, time.Second)
			require.Equal(r, idem.InProgress, next.state("k"))
			next.complete(c, "b")
			next.replays("k", "b")
		})
	})
	t.Run("duplicates wait for it", func(t *testing.T) {
		bubble(t, idem.Config{}, func(r rig) {
			r.fresh("k", time.Minute)
			next := r.restart(idem.Config{}, time.Second)
			start := time.Now()
			out := next.begin(idem.Request{Key: "k", Wait: true})
			require.Equal(r, idem.Fresh, out.State)
			require.InDelta(r, 59*time.Second, time.Since(start), float64(5*time.Millisecond))
		})
	})
	for _, down := range []time.Duration{0, 59 * time.Second, time.Minute, 59 * time.Minute, 61*time.Minute - 1, 61 * time.Minute} {
		t.Run(fmt.Sprintf("TakeOver after %v", down), func(t *testing.T) {
			bubble(t, idem.Config{}, func(r rig) {
				r.fresh("k", time.Minute)
				next := r.restart(idem.Config{}, down)
				want := idem.InProgress
				if down >= time.Minute {
					want = idem.Fresh
				}
				require.Equal(r, want, next.state("k"))
			})
		})
		t.Run(fmt.Sprintf("Hold after %v", down), func(t *testing.T) {
			cfg := idem.Config{OnLeaseExpiry: idem.Hold, TTL: time.Hour}
			bubble(t, cfg, func(r rig) {
				r.fresh("k", time.Minute)
				next := r.restart(cfg, down)
				want := idem.InProgress
				switch {
				case down >= 61*time.Minute:
					want = idem.Fresh
				case down >= time.Minute:
					want = idem.Unknown
				}
				require.Equal(r, want, next.state("k"))
				time.Sleep(61*time.Minute - down)
				if want != idem.Fresh {
					require.Equal(r, idem.Fresh, next.state("k"))
				}
			})
		})
	}
	t.Run("tokens go on", func(t *testing.T) {
		bubble(t, idem.Config{}, func(r rig) {
			var last idem.Claim
			for range 100 { // more than the µs that pass
				last = r.fresh("k", 0)
				require.NoError(r, r.Abandon(r.Context(), last))
			}
			next := r.restart(idem.Config{}, 0)
			require.Greater(r, next.fresh("k", 0).Token, last.Token)
		})
	})
}

// What an engine knows already it knows better.
func TestRestoreChangesNothingThatIsThere(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		r.complete(r.fresh("done", 0), "old")
		r.complete(r.fresh("running", 0), "old")
		saved := r.snapshot()
		time.Sleep(time.Second) // or both would grant the same tokens
		next := newRig(r, idem.Config{})
		next.complete(next.fresh("done", 0), "new")
		c := next.fresh("running", 0)
		for range 2 {
			require.NoError(r, next.Restore(bytes.NewReader(saved)))
			next.replays("done", "new")
			require.Equal(r, idem.InProgress, next.state("running"))
		}
		next.complete(c, "new")
		require.NoError(r, r.Restore(bytes.NewReader(saved)), "its own")
		require.Zero(r, r.Stats().Restored)
	})
}

// Of two snapshots the one that knows how a claim ended is right, whichever is restored first. And what has lapsed is
// its owner's still, as long as nobody came later.
func TestRestoreWhatIsNewer(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		c := r.fresh("k", time.Minute)
		older := r.snapshot()
		r.complete(c, "b")
		newer := r.snapshot()
		for _, order := range [][][]byte{{older, newer}, {newer, older}} {
			next := newRig(r, idem.Config{})
			var waited sync.WaitGroup
			for i, saved := range order {
				require.NoError(r, next.Restore(bytes.NewReader(saved)))
				if i == 0 {
					waited.Go(func() {
						out, err := next.Begin(r.Context(), idem.Request{Key: "k", Wait: true})
						require.NoError(r, err)
						require.Equal(r, idem.Replay, out.State)
					})
					synctest.Wait()
				}
			}
			waited.Wait()
			next.replays("k", "b")
			st := next.Stats()
			require.Equal(r, []uint64{1, 0, 0}, []uint64{st.Restored, st.Forgotten, st.LeasesExpired}, "it is one record")
			require.Equal(r, 1, st.Records)
		}
		time.Sleep(time.Second)
		next := newRig(r, idem.Config{})
		late := next.fresh("k", time.Nanosecond)
		time.Sleep(time.Nanosecond)
		require.NoError(r, next.Restore(bytes.NewReader(older)))
		next.complete(late, "later")
		next.replays("k", "later")
		require.NoError(r, next.Restore(bytes.NewReader(newer)))
		next.replays("k", "later")
	})
}

// An operator is told what a restart has cost.
func TestRestoreTellsWhatIsOver(t *testing.T) {
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		var log bytes.Buffer
		cfg := idem.Config{OnLeaseExpiry: policy, Shards: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		bubble(t, cfg, func(r rig) {
			for i := range 1000 {
				r.fresh(fmt.Sprint(i), time.Second)
			}
			r.done("over", "b", time.Second)
			r.done("stays", "b", time.Hour)
			saved := r.snapshot()
			require.NoError(r, r.Close())
			next := newRig(r, cfg)
			next.done("already there", "b", time.Minute)
			time.Sleep(2 * time.Second) // the sweeper sleeps when the snapshot comes
			require.NoError(r, next.Restore(bytes.NewReader(saved)))
			time.Sleep(time.Second)
			synctest.Wait()
			require.EqualValues(r, 1000, next.Stats().LeasesExpired)
			over := map[idem.LeasePolicy]int{idem.TakeOver: 1001, idem.Hold: 1}[policy]
			require.Contains(r, log.String(), fmt.Sprintf("records=1002 over=%d age=2s", over))
			told := 0
			for _, n := range regexp.MustCompile(`claims=(\d+)`).FindAllStringSubmatch(log.String(), -1) {
				claims, err := strconv.Atoi(n[1])
				require.NoError(r, err)
				told += claims
			}
			require.Equal(r, 1000, told)
			st := next.Stats()
			if policy == idem.TakeOver {
				require.Equal(r, st.Fresh+st.Restored, uint64(st.Records)+st.LeasesExpired)
			}
		})
	}
}

func TestRestoreUnderOtherLimits(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		for i := range 100 {
			r.complete(r.fresh(fmt.Sprint(i), 0), strings.Repeat("b", 20_000))
		}
		r.fresh(strings.Repeat("k", 100), 0)
		next := r.restart(idem.Config{MaxRecords: 10, MaxBytes: 1 << 20, MaxKeyBytes: 50, MaxResponseBytes: 10}, 0)
		require.Equal(r, 100, next.Len(), "none is forgotten but the key for which nobody can ask")
		next.replays("0", strings.Repeat("b", 20_000))
		_, err := next.Begin(r.Context(), idem.Request{Key: "new"})
		require.ErrorIs(r, err, idem.ErrFull)
		time.Sleep(25 * time.Hour)
		synctest.Wait()
		next.fresh("new", 0)
		require.Equal(r, 1, next.Len())
	})
}

// A clock that was set back tells nothing of how long the process was away. Time must not be made of that.
func TestRestoreAfterTheClockWasSetBack(t *testing.T) {
	var saved []byte
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1000 * time.Hour)
		r := newRig(t, idem.Config{})
		r.fresh("k", time.Minute)
		saved = r.snapshot()
	})
	bubble(t, idem.Config{}, func(r rig) { // which begins in the year 2000 again
		require.NoError(r, r.Restore(bytes.NewReader(saved)))
		require.Equal(r, time.Minute, r.begin(idem.Request{Key: "k"}).Remaining)
	})
}

// Any one bit that is wrong, and any end that is missing, is noticed; and what was restored until then is true.
func TestRestoreOfWhatIsDamaged(t *testing.T) {
	r := newRig(t, idem.Config{})
	want := map[string]string{"a": "body of a", "b": strings.Repeat("b", 100), "c": ""}
	for key, body := range want {
		r.complete(r.fresh(key, 0), body)
	}
	whole := r.snapshot()
	attempt := func(damaged []byte, what string, at int) {
		next := newRig(t, idem.Config{Shards: 1})
		defer func() { require.NoError(t, next.Close()) }()
		err := next.Restore(bytes.NewReader(damaged))
		require.ErrorIs(t, err, idem.ErrSnapshot, "%s %d", what, at)
		for rec := range next.All() {
			require.Equal(t, want[rec.Key], string(rec.Response.Body))
		}
	}
	for n := range whole {
		attempt(whole[:n], "cut to", n)
	}
	for bit := range 8 * len(whole) {
		damaged := bytes.Clone(whole)
		damaged[bit/8] ^= 1 << (bit % 8)
		attempt(damaged, "without bit", bit)
	}
	attempt(whole[24:], "without its first bytes", 0)
	attempt(append(bytes.Clone(whole[:len(whole)-72]), whole[24:]...), "twice in a row", 0)
	err := r.Restore(strings.NewReader("idem-sn2 and so on, and so on"))
	require.ErrorIs(t, err, idem.ErrSnapshot)
	require.ErrorContains(t, err, `"idem-sn2", want "idem-sn1"`)
}

func TestSnapshotErrors(t *testing.T) {
	r := newRig(t, idem.Config{})
	r.complete(r.fresh("k", 0), strings.Repeat("b", 1000))
	saved := r.snapshot()
	down := errors.New("disk is full")
	for n := range 3 {
		require.ErrorIs(t, r.Snapshot(&failingWriter{after: n * 500, err: down}), down)
	}
	next := newRig(t, idem.Config{})
	broken := io.MultiReader(bytes.NewReader(saved[:200]), iotest.ErrReader(down))
	err := next.Restore(broken)
	require.ErrorIs(t, err, down)
	require.NotErrorIs(t, err, idem.ErrSnapshot, "it may be whole")
	require.NoError(t, next.Restore(iotest.OneByteReader(bytes.NewReader(saved))))
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Snapshot(io.Discard), idem.ErrClosed)
	require.ErrorIs(t, r.Restore(bytes.NewReader(saved)), idem.ErrClosed)
	require.ErrorIs(t, r.Restore(bytes.NewReader(newRig(t, idem.Config{}).snapshot())), idem.ErrClosed, "nor one without records")
}

type failingWriter struct {
	after int // bytes
	err   error
}

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.after -= len(p); w.after < 0 {
		return 0, w.err
	}
	return len(p), nil
}

// A snapshot that is taken under load has all that was done before.
func TestSnapshotUnderLoad(t *testing.T) {
	r := newRig(t, idem.Config{Shards: 2})
	stop := make(chan struct{})
	var load sync.WaitGroup
	for worker := range 4 {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				c := r.fresh(fmt.Sprint(worker, "/", i), 0)
				r.complete(c, "b")
				if i%3 == 0 {
					r.forget(c.Key, true)
				}
			}
		})
	}
	const before = 2000
	for i := range before {
		r.complete(r.fresh(fmt.Sprint("before ", i), 0), fmt.Sprint(i))
	}
	saved := r.snapshot()
	close(stop)
	load.Wait()
	next := newRig(t, idem.Config{Shards: 8})
	require.NoError(t, next.Restore(bytes.NewReader(saved)))
	for i := range before {
		next.replays(fmt.Sprint("before ", i), fmt.Sprint(i))
	}
}
