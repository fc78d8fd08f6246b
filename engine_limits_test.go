package idem_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		field string
		cfg   idem.Config
	}{
		{"Shards", idem.Config{Shards: -1}},
		{"Shards", idem.Config{Shards: 3}},
		{"Shards", idem.Config{Shards: 1 << 17}},
		{"TTL", idem.Config{TTL: -1}},
		{"TTL", idem.Config{TTL: math.MinInt64}},
		{"Lease", idem.Config{Lease: -1}},
		{"OnLeaseExpiry", idem.Config{OnLeaseExpiry: idem.Hold + 1}},
		{"MaxKeyBytes", idem.Config{MaxKeyBytes: -1}},
		{"MaxKeyBytes", idem.Config{MaxKeyBytes: 65536}},
		{"MaxResponseBytes", idem.Config{MaxResponseBytes: -1}},
		{"MaxRecords", idem.Config{MaxRecords: -1}},
		{"MaxBytes", idem.Config{MaxBytes: 1<<20 - 1}},
		{"MaxWaiters", idem.Config{MaxWaiters: -1}},
		{"MaxWaitersPerKey", idem.Config{MaxWaitersPerKey: -1}},
	} {
		e, err := idem.New(tt.cfg)
		require.ErrorContains(t, err, "idem: Config."+tt.field, "%+v", tt.cfg)
		require.Nil(t, e)
	}
	for _, cfg := range []idem.Config{
		{},
		{Shards: 1, TTL: 1, Lease: 1, MaxKeyBytes: 1, MaxResponseBytes: 1, MaxRecords: 1, MaxBytes: 1 << 20, MaxWaiters: 1, MaxWaitersPerKey: 1},
		{Shards: 1 << 10, TTL: math.MaxInt64, Lease: math.MaxInt64, MaxKeyBytes: 65535, MaxResponseBytes: math.MaxInt32, MaxRecords: math.MaxInt, MaxBytes: math.MaxInt},
	} {
		r := newRig(t, cfg)
		require.NoError(t, r.Complete(t.Context(), r.fresh("k", time.Hour), idem.Response{Body: []byte("b"), TTL: time.Hour}))
		r.replays("k", "b")
	}
}

func TestKeyLengths(t *testing.T) {
	for _, limit := range []int{1, 255, 65535} {
		r := newRig(t, idem.Config{MaxKeyBytes: limit})
		longest := strings.Repeat("\xf0", limit)
		out := r.begin(idem.Request{Scope: longest, Key: longest})
		require.Equal(t, idem.Fresh, out.State)
		r.complete(out.Claim, "b")
		require.Equal(t, "b", string(r.begin(idem.Request{Scope: longest, Key: longest}).Response.Body))
		require.Equal(t, idem.Fresh, r.begin(idem.Request{Scope: longest[1:], Key: longest}).State)

		for _, bad := range [][2]string{{"", ""}, {"s", ""}, {"", longest + "x"}, {longest + "x", "k"}, {"", strings.Repeat("k", 1<<20)}} {
			_, err := r.Begin(t.Context(), idem.Request{Scope: bad[0], Key: bad[1]})
			require.ErrorIs(t, err, idem.ErrKey)
			_, _, err = r.Lookup(t.Context(), bad[0], bad[1])
			require.ErrorIs(t, err, idem.ErrKey)
			_, err = r.Forget(t.Context(), bad[0], bad[1])
			require.ErrorIs(t, err, idem.ErrKey)
			require.ErrorIs(t, r.Resolve(t.Context(), bad[0], bad[1], idem.Response{}), idem.ErrKey)
		}
		require.Equal(t, 2, r.Len(), "nothing was written")
	}
}

// Long names and a response estimate can add up to a record that is large before it is done.
func TestLongNamesWithAnyBody(t *testing.T) {
	bubble(t, idem.Config{Shards: 1, MaxKeyBytes: 65535}, func(r rig) {
		for i, size := range []int{8000, 0, 4000, 200, 9000, 100_000, 0, 1} {
			for _, length := range []int{1, 5000, 10_000, 16_320, 30_000, 65_535} {
				name, body := strings.Repeat("n", length), strings.Repeat(string(rune('a'+i)), size)
				out := r.begin(idem.Request{Scope: name, Key: fmt.Sprint(i)})
				require.Equal(r, idem.Fresh, out.State)
				r.complete(out.Claim, body)
				require.Equal(r, body, string(r.begin(idem.Request{Scope: name, Key: fmt.Sprint(i)}).Response.Body))
			}
		}
		for rec := range r.All() {
			require.Equal(r, strings.Repeat("n", len(rec.Scope)), rec.Scope)
			r.complete(idem.Claim{Scope: rec.Scope, Key: rec.Key, Token: rec.Token}, "again")
		}
		time.Sleep(gone(24 * time.Hour))
		synctest.Wait()
		require.Zero(r, r.Len())
	})
}

func TestResponseLimit(t *testing.T) {
	for _, limit := range []int{1, 1000, 20_000} { // the last is a slab of its own
		for _, header := range []int{0, 1, limit / 2, limit} {
			for _, total := range []int{limit - 1, limit, limit + 1, 10 * limit} {
				if total < header {
					continue
				}
				t.Run(fmt.Sprintf("header %d and body %d of %d bytes", header, total-header, limit), func(t *testing.T) {
					r := newRig(t, idem.Config{MaxResponseBytes: limit})
					resp := idem.Response{Status: 201, Header: make([]byte, header), Body: make([]byte, total-header)}
					completeUpTo(r, limit, resp)
				})
			}
		}
	}
	t.Run("a header that is too large alone", func(t *testing.T) {
		completeUpTo(newRig(t, idem.Config{MaxResponseBytes: 10}), 10, idem.Response{Status: 200, Header: make([]byte, 11)})
	})
	if strconv.IntSize == 32 {
		return // any status fits
	}
	t.Run("a status that does not fit", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		c, most, least := r.fresh("k", 0), math.MaxInt32, math.MinInt32
		for _, status := range []int{most + 1, least - 1} {
			require.ErrorContains(t, r.Complete(t.Context(), c, idem.Response{Status: status}), "Status")
			require.ErrorContains(t, r.Resolve(t.Context(), "", "k", idem.Response{Status: status}), "Status")
		}
		r.complete(c, "the claim is still good")
	})
}

// completeUpTo checks that what is over the limit is cut, and that the operation is known to have run.
func completeUpTo(r rig, limit int, resp idem.Response) {
	r.Helper()
	fits := len(resp.Header)+len(resp.Body) <= limit
	check := func(err error, key string) {
		r.Helper()
		got := r.begin(idem.Request{Key: key}).Response
		require.Equal(r, resp.Status, got.Status)
		require.Equal(r, !fits, got.Truncated)
		if fits {
			require.NoError(r, err)
			require.Equal(r, string(resp.Header)+string(resp.Body), string(got.Header)+string(got.Body))
			return
		}
		require.ErrorIs(r, err, idem.ErrTruncated)
		require.Empty(r, got.Body)
		if len(resp.Header) <= limit {
			require.Equal(r, string(resp.Header), string(got.Header))
		} else {
			require.Empty(r, got.Header)
		}
	}
	check(r.Complete(r.Context(), r.fresh("k", 0), resp), "k")
	r.fresh("l", 0)
	check(r.Resolve(r.Context(), "", "l", resp), "l")
	cut := map[bool]uint64{true: 0, false: 2}[fits]
	require.Equal(r, cut, r.Stats().Truncated)
}

func (r rig) full(key string) {
	r.Helper()
	_, err := r.Begin(r.Context(), idem.Request{Key: key, Wait: true})
	require.ErrorIs(r, err, idem.ErrFull)
}

// What is over makes room at once, and not some share of its TTL later.
func TestMaxRecordsAfterTTL(t *testing.T) {
	bubble(t, idem.Config{MaxRecords: 1}, func(r rig) {
		r.done("k", "b", 24*time.Hour)
		r.full("another")
		time.Sleep(24*time.Hour + sweepLag)
		r.fresh("another", 0)
	})
}

// A response that was kept stays so, whatever its owner completes with again; one that was not is named each time.
func TestCompleteAgainTruncated(t *testing.T) {
	r := newRig(t, idem.Config{MaxResponseBytes: 10})
	kept, cut := r.fresh("kept", 0), r.fresh("cut", 0)
	large := idem.Response{Body: make([]byte, 11)}
	r.complete(kept, "small")
	require.NoError(t, r.Complete(t.Context(), kept, large))
	r.replays("kept", "small")
	for range 2 {
		require.ErrorIs(t, r.Complete(t.Context(), cut, large), idem.ErrTruncated)
	}
}

func TestMaxRecords(t *testing.T) {
	bubble(t, idem.Config{MaxRecords: 100}, func(r rig) {
		claimed := r.fresh("claimed", time.Hour)
		lapsing := r.fresh("lapsing", time.Minute)
		for i := range 98 {
			r.done(fmt.Sprint(i), "b", time.Duration(i+1)*time.Hour)
		}
		r.full("one more")
		_, err := r.Begin(r.Context(), idem.Request{Key: "one more"})
		require.ErrorContains(r, err, "Config.MaxRecords is reached")
		require.Equal(r, 100, r.Len())
		for i := range 98 { // nothing was evicted, neither what is done nor what is in progress
			r.replays(fmt.Sprint(i), "b")
		}
		require.Equal(r, idem.InProgress, r.state("claimed"))
		r.complete(claimed, "b")

		time.Sleep(time.Minute)
		require.Equal(r, idem.Fresh, r.state("lapsing"), "a key that is there needs no room")
		time.Sleep(time.Minute + sweepLag)
		r.fresh("one more", time.Hour)
		r.complete(lapsing, "it ran, full or not")
		require.Equal(r, 101, r.Len())
		r.full("another")
		r.forget("one more", true)
		r.full("another")
		r.forget("claimed", true)
		r.fresh("another", 0)

		time.Sleep(gone(99 * time.Hour))
		synctest.Wait()
		require.Zero(r, r.Len())
		for i := range 100 {
			r.fresh(fmt.Sprint(i), 0)
		}
		r.full("one more")
		require.EqualValues(r, 5, r.Stats().Refused)
	})
}

// fill begins keys until the store is full, each with a lease that lasts, and returns the claims.
func (r rig) fill(name string) (all []idem.Claim) {
	r.Helper()
	for {
		out, err := r.Begin(r.Context(), idem.Request{Key: fmt.Sprint(name, len(all)), Lease: time.Hour})
		if err != nil {
			require.ErrorIs(r, err, idem.ErrFull)
			return all
		}
		all = append(all, out.Claim)
	}
}

func TestMaxBytes(t *testing.T) {
	const limit = 1 << 20
	for _, shards := range []int{1, 32} {
		t.Run(fmt.Sprintf("%d shards", shards), func(t *testing.T) {
			bubble(t, idem.Config{MaxBytes: limit, Shards: shards}, func(r rig) {
				claims := r.fill("a")
				held := r.Stats().Bytes
				require.InDelta(r, limit, held, limit/4, "in slabs of up to 128 KiB")
				for i, c := range claims {
					body := strings.Repeat("b", i%2*500) // more than there is room for
					if err := r.Complete(r.Context(), c, idem.Response{Body: []byte(body), TTL: time.Hour}); err != nil {
						r.Fatal(err)
					}
				}
				require.Greater(r, r.Stats().Bytes, limit+limit/10, "what has run is recorded all the same")
				require.Less(r, len(r.fill("in cells that are left")), len(claims)/2)
				for i, c := range claims {
					r.replays(c.Key, strings.Repeat("b", i%2*500))
				}
				time.Sleep(gone(time.Hour))
				synctest.Wait()
				require.Zero(r, r.Len())
				require.Less(r, r.Stats().Bytes, 9000*shards, "slabs are given back")
				r.complete(claims[0], "late")
				require.NotEmpty(r, r.fill("b"))
				_, err := r.Begin(r.Context(), idem.Request{Key: "no more"})
				require.ErrorContains(r, err, "Config.MaxBytes is reached")
				r.replays(claims[0].Key, "late")
			})
		})
	}
}

// Empty slabs that are kept for later must not add up over sizes and shards until no room is left.
func TestMaxBytesIsFreeAgainAfterAllSizes(t *testing.T) {
	bubble(t, idem.Config{MaxBytes: 1 << 20, Shards: 64}, func(r rig) {
		rnd := rand.New(rand.NewPCG(1, 2))
		for i := range 20 {
			for j := range 300 {
				out, err := r.Begin(r.Context(), idem.Request{Key: fmt.Sprint(i, j)})
				if err != nil {
					require.ErrorIs(r, err, idem.ErrFull)
					continue
				}
				require.NoError(r, r.Complete(r.Context(), out.Claim, idem.Response{Body: make([]byte, rnd.IntN(5000)), TTL: time.Second}))
			}
			time.Sleep(gone(time.Second))
			synctest.Wait()
			require.Zero(r, r.Len())
			for j := range 100 {
				r.fresh(fmt.Sprint("new", j), time.Millisecond)
			}
			time.Sleep(time.Millisecond + sweepLag)
		}
	})
}

// Records of all sizes come and go. What stands unused between them stays in proportion, and goes in the end.
func TestChurnOfAllSizesKeepsBytesBounded(t *testing.T) {
	const spare = 2 << 20 // bytes; a few empty slabs of each size
	bubble(t, idem.Config{Shards: 4}, func(r rig) {
		rnd, most, body := rand.New(rand.NewPCG(3, 4)), 0, make([]byte, 32<<10)
		for i := range 10_000 {
			size := rnd.IntN(1 << (6 + rnd.IntN(10))) // up to 32 KiB, mostly little
			r.done(fmt.Sprint(i), string(body[:size]), time.Duration(rnd.IntN(1500)+1)*time.Millisecond)
			if i%4 == 0 {
				time.Sleep(time.Millisecond)
			}
			if i%500 == 499 {
				live := 0
				for rec := range r.All() {
					live += len(rec.Response.Body) + 100
				}
				held := r.Stats().Bytes
				most = max(most, held)
				require.Less(r, held, 2*live+spare, "after %d records", i)
			}
		}
		require.Greater(r, most, 3*spare, "or else this shows nothing")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Less(r, r.Stats().Bytes, spare)
	})
}

func TestErrFullLeavesNothingBehind(t *testing.T) {
	r := newRig(t, idem.Config{MaxRecords: 1})
	r.fresh("k", time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 1000 {
		_, err := r.Begin(ctx, idem.Request{Key: "other"})
		require.ErrorIs(t, err, idem.ErrFull)
	}
	st := r.Stats()
	require.Equal(t, []uint64{1, 1000}, []uint64{st.Fresh, st.Refused})
	require.Equal(t, 1, st.InProgress)
	r.forget("k", true)
	r.fresh("other", 0)
}

// Claims alone never pass MaxBytes, and may come as near to it as they fit.
func TestMaxBytesOfClaims(t *testing.T) {
	claims := func(limit int) idem.Stats {
		r := newRig(t, idem.Config{MaxBytes: limit, MaxKeyBytes: 65535, Shards: 1})
		scope := strings.Repeat("s", 60_000) // each a slab of its own
		for i := range 18 {
			if _, err := r.Begin(t.Context(), idem.Request{Scope: scope, Key: fmt.Sprint(i), Lease: time.Hour}); err != nil {
				require.ErrorIs(t, err, idem.ErrFull)
			}
		}
		return r.Stats()
	}
	all := claims(2 << 20)
	require.Equal(t, 18, all.Records)
	require.Equal(t, 18, claims(all.Bytes).Records)
	require.Equal(t, 17, claims(all.Bytes-1).Records)
	require.LessOrEqual(t, claims(1<<20).Bytes, 1<<20)
}

// An owner that cut a response itself need not be told; that the store cut more of it, it must.
func TestCompleteOfWhatIsCutAlready(t *testing.T) {
	r := newRig(t, idem.Config{MaxResponseBytes: 10})
	require.NoError(t, r.Complete(t.Context(), r.fresh("fits", 0), idem.Response{Body: make([]byte, 10), Truncated: true}))
	err := r.Complete(t.Context(), r.fresh("does not", 0), idem.Response{Body: make([]byte, 11), Truncated: true})
	require.ErrorIs(t, err, idem.ErrTruncated)
}

// However much is over at a time makes room within milliseconds.
func TestMuchIsReclaimedAtOnce(t *testing.T) {
	const n = 1000
	bubble(t, idem.Config{Shards: 1, MaxRecords: n}, func(r rig) {
		for i := range n {
			r.done(string(rune('a'+i)), "b", time.Second)
		}
		time.Sleep(time.Second + sweepLag)
		synctest.Wait()
		require.Zero(r, r.Len())
	})
}

// Keys are refused for lack of bytes only as long as something is there that counts.
func TestBytesOfWhatIsOverAreFreeSoon(t *testing.T) {
	bubble(t, idem.Config{Shards: 1, MaxBytes: 1 << 20}, func(r rig) {
		for _, claim := range r.fill("k") {
			r.complete(claim, string(make([]byte, 200)))
		}
		time.Sleep(24*time.Hour + 5*time.Second)
		r.fresh("new", 0)
	})
}
