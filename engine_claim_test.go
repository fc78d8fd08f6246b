package idem_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// losses are the ways in which a claim is no longer its owner's to use. They happen in a bubble, where a second takes no time.
var losses = map[string]func(r rig, c idem.Claim){
	"in progress again": func(r rig, c idem.Claim) {
		time.Sleep(time.Second)
		r.fresh(c.Key, time.Hour)
	},
	"done by another owner": func(r rig, c idem.Claim) {
		time.Sleep(time.Second)
		r.complete(r.fresh(c.Key, time.Hour), "theirs")
	},
	"abandoned and claimed again": func(r rig, c idem.Claim) {
		require.NoError(r, r.Abandon(r.Context(), c))
		r.fresh(c.Key, time.Hour)
	},
	"forgotten and claimed again": func(r rig, c idem.Claim) {
		r.forget(c.Key, true)
		r.fresh(c.Key, time.Hour)
	},
	"resolved": func(r rig, c idem.Claim) {
		require.NoError(r, r.Resolve(r.Context(), "", c.Key, idem.Response{Body: []byte("theirs")}))
	},
}

func TestClaimIsLost(t *testing.T) {
	for name, end := range losses {
		t.Run(name, func(t *testing.T) {
			bubble(t, idem.Config{}, func(r rig) {
				c := r.fresh("k", time.Second)
				end(r, c)
				before, found, err := r.Lookup(r.Context(), "", "k")
				require.NoError(r, err)
				require.True(r, found)
				r.lost(c)
				after, _, _ := r.Lookup(r.Context(), "", "k")
				require.Equal(r, before, after, "a lost claim changes nothing")
				require.EqualValues(r, 3, r.Stats().Lost)
			})
		})
	}
}

// Nobody else having asked for the key, its owner may still use the claim, however it ended.
func TestLateOwner(t *testing.T) {
	late := map[string]func(r rig, c idem.Claim){
		"at the lease's end":    func(rig, idem.Claim) { time.Sleep(time.Second) },
		"after the lease's end": func(rig, idem.Claim) { time.Sleep(time.Hour); synctest.Wait() },
		"after being looked at": func(r rig, c idem.Claim) {
			time.Sleep(time.Second)
			_, _, err := r.Lookup(r.Context(), "", c.Key)
			require.NoError(r, err)
		},
		"after being forgotten": func(r rig, c idem.Claim) { r.forget(c.Key, true) },
	}
	for name, end := range late {
		for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
			t.Run(fmt.Sprintf("%s, policy %d", name, policy), func(t *testing.T) {
				bubble(t, idem.Config{OnLeaseExpiry: policy}, func(r rig) { actLate(r, end) })
			})
		}
	}
}

func actLate(r rig, end func(rig, idem.Claim)) {
	begin := func(fp byte) idem.Outcome {
		return r.begin(idem.Request{Key: "k", Fingerprint: idem.Fingerprint{fp}, Lease: time.Second})
	}
	c := begin(1).Claim
	end(r, c)
	require.NoError(r, r.Extend(r.Context(), c, time.Minute))
	require.Equal(r, idem.Outcome{State: idem.InProgress, Remaining: time.Minute}, begin(1))

	require.NoError(r, r.Abandon(r.Context(), c))
	c = begin(2).Claim
	end(r, c)
	r.complete(c, "late")
	require.Equal(r, "late", string(begin(2).Response.Body), "the fingerprint came back with the claim")
}

// Whether the sweeper has come by already must make no difference to an owner.
func TestLateOwnerAfterAnotherLateOwner(t *testing.T) {
	answer := func(t *testing.T, before func(r rig)) (err error) {
		bubble(t, idem.Config{}, func(r rig) {
			first := r.fresh("k", time.Second)
			time.Sleep(time.Second)
			r.fresh("k", time.Second)
			time.Sleep(time.Second)
			before(r)
			err = r.Complete(r.Context(), first, idem.Response{})
		})
		return err
	}
	at := answer(t, func(rig) {})
	looked := answer(t, func(r rig) { _, _, _ = r.Lookup(r.Context(), "", "k") })
	swept := answer(t, func(rig) { time.Sleep(time.Second); synctest.Wait() })
	require.Equal(t, swept, at)
	require.Equal(t, swept, looked)
}

func TestCompleteAgainChangesNothing(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		c := r.done("k", "first", time.Hour)
		time.Sleep(time.Minute)
		r.complete(c, "second")
		r.replays("k", "first")
		require.EqualValues(r, 1, r.Stats().Completed)
		require.ErrorIs(r, r.Extend(r.Context(), c, 0), idem.ErrClaimLost, "there is no lease any more")
		require.NoError(r, r.Abandon(r.Context(), c), "so that deferring it is safe")
		r.replays("k", "first")
		time.Sleep(59 * time.Minute)
		require.Equal(r, idem.Fresh, r.state("k"), "the TTL is the first one's")
	})
}

func TestAbandon(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		c := r.fresh("k", time.Second)
		require.NoError(r, r.Abandon(r.Context(), c))
		require.Zero(r, r.Len())
		require.NoError(r, r.Abandon(r.Context(), c), "the key is absent")
		out := r.begin(idem.Request{Key: "k", Fingerprint: idem.Fingerprint{1}, Lease: time.Second})
		require.Equal(r, idem.Fresh, out.State, "whatever the fingerprint")
		time.Sleep(time.Second)
		require.Equal(r, idem.Unknown, r.begin(idem.Request{Key: "k", Fingerprint: idem.Fingerprint{1}}).State)
		require.NoError(r, r.Abandon(r.Context(), out.Claim), "the owner knows that it did nothing")
		require.Equal(r, idem.Fresh, r.state("k"))
		require.EqualValues(r, 2, r.Stats().Abandoned)
	})
}

func TestZeroClaim(t *testing.T) {
	r := newRig(t, idem.Config{})
	require.NoError(t, r.Abandon(t.Context(), idem.Claim{}))
	require.ErrorIs(t, r.Complete(t.Context(), idem.Claim{}, idem.Response{}), idem.ErrClaimLost)
	require.ErrorIs(t, r.Extend(t.Context(), idem.Claim{}, 0), idem.ErrClaimLost)
	require.Zero(t, r.Len())
}

func TestExtend(t *testing.T) {
	bubble(t, idem.Config{Lease: time.Minute}, func(r rig) {
		remaining := func() time.Duration { return r.begin(idem.Request{Key: "k"}).Remaining }
		c := r.fresh("k", time.Second)
		for _, lease := range []time.Duration{time.Hour, time.Millisecond, 1, math.MaxInt64, 5 * time.Second} {
			require.NoError(r, r.Extend(r.Context(), c, lease))
			require.LessOrEqual(r, remaining(), lease)
			require.Greater(r, remaining(), lease-time.Second, "from now on, shorter or longer")
		}
		time.Sleep(5*time.Second - 1)
		require.EqualValues(r, 1, remaining())
		require.NoError(r, r.Extend(r.Context(), c, 0))
		require.Equal(r, time.Minute, remaining(), "zero is the engine's lease")
		require.Error(r, r.Extend(r.Context(), c, -1))
		require.Equal(r, time.Minute, remaining())
		require.EqualValues(r, 6, r.Stats().Extended)
	})
}

func TestResolve(t *testing.T) {
	resp := idem.Response{Status: 200, Body: []byte("found out")}
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		ctx := r.Context()
		require.ErrorIs(r, r.Resolve(ctx, "", "k", resp), idem.ErrNoClaim, "absent")
		c := r.fresh("k", time.Second)
		time.Sleep(time.Second)
		require.NoError(r, r.Resolve(ctx, "", "k", resp), "unknown")
		r.replays("k", "found out")
		r.lost(c)
		require.ErrorIs(r, r.Resolve(ctx, "", "k", resp), idem.ErrNoClaim, "done")
		rec, _, _ := r.Lookup(ctx, "", "k")
		require.Greater(r, rec.Token, c.Token)

		c = r.fresh("l", time.Second)
		require.NoError(r, r.Resolve(ctx, "", "l", resp), "in progress")
		r.replays("l", "found out")
		r.lost(c)
		time.Sleep(24 * time.Hour)
		require.ErrorIs(r, r.Resolve(ctx, "", "l", resp), idem.ErrNoClaim, "over")
		require.EqualValues(r, 2, r.Stats().Resolved)
	})
	bubble(t, idem.Config{}, func(r rig) {
		c := r.fresh("k", time.Second)
		time.Sleep(time.Second)
		require.ErrorIs(r, r.Resolve(r.Context(), "", "k", resp), idem.ErrNoClaim, "free for anyone")
		r.complete(c, "late")
		r.replays("k", "late")
	})
}

func TestForget(t *testing.T) {
	bubble(t, idem.Config{OnLeaseExpiry: idem.Hold}, func(r rig) {
		r.forget("k", false)
		r.done("k", "b", time.Minute)
		r.forget("k", true)
		r.forget("k", false)
		require.Zero(r, r.Len())
		r.done("k", "b", time.Minute)
		time.Sleep(time.Minute)
		r.forget("k", false) // it was over
		r.fresh("k", time.Second)
		time.Sleep(time.Second)
		require.Equal(r, idem.Unknown, r.state("k"))
		r.forget("k", true)
		require.Equal(r, idem.Fresh, r.state("k"))
	})
}

func TestTokensGrow(t *testing.T) {
	bubble(t, idem.Config{}, func(r rig) {
		last := uint64(0)
		next := func(c idem.Claim) idem.Claim {
			require.Greater(r, c.Token, last)
			last = c.Token
			return c
		}
		for range 3 {
			require.NoError(r, r.Abandon(r.Context(), next(r.fresh("k", 0))))
			next(r.fresh("k", time.Second))
			time.Sleep(time.Second) // taken over
			next(r.fresh("k", time.Second))
			time.Sleep(time.Hour) // swept
			next(r.fresh("k", 0))
			r.forget("k", true)
			r.complete(next(r.fresh("k", 0)), "")
			time.Sleep(24 * time.Hour) // expired
			next(r.fresh("k", 0))
			require.NoError(r, r.Resolve(r.Context(), "", "k", idem.Response{}))
			rec, _, _ := r.Lookup(r.Context(), "", "k")
			next(idem.Claim{Token: rec.Token})
			r.forget("k", true)
		}
		time.Sleep(time.Second)
		restarted := newRig(r, idem.Config{})
		next(restarted.fresh("k", 0))
	})
}

func TestClaimTravels(t *testing.T) {
	marshalled := func(t testing.TB, c idem.Claim) (back idem.Claim) {
		text, err := json.Marshal(c)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &back))
		return back
	}
	t.Run("in JSON", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		c := r.begin(idem.Request{Scope: "s", Key: "k", Fingerprint: idem.Fingerprint{7}}).Claim
		back := marshalled(t, c)
		require.NoError(t, r.Extend(t.Context(), back, time.Hour))
		r.complete(back, "b")
		r.complete(c, "both are the same claim")
		out := r.begin(idem.Request{Scope: "s", Key: "k", Fingerprint: idem.Fingerprint{7}})
		require.Equal(t, "b", string(out.Response.Body))
	})
	t.Run("over a restart", func(t *testing.T) {
		bubble(t, idem.Config{}, func(r rig) {
			c := marshalled(r, r.fresh("k", 0))
			time.Sleep(time.Second)
			restarted := newRig(r, idem.Config{})
			restarted.complete(c, "b")
			restarted.replays("k", "b")
			require.EqualValues(r, 1, restarted.Stats().Restored)
		})
	})
	t.Run("not to another engine", func(t *testing.T) {
		r, other := newRig(t, idem.Config{}), newRig(t, idem.Config{})
		other.lost(r.fresh("k", 0))
		require.Zero(t, other.Len())
	})
	t.Run("not with a token from the future", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		c := r.fresh("k", 0)
		r.lost(idem.Claim{Key: "k", Token: c.Token + 1})
		r.lost(idem.Claim{Key: "other", Token: math.MaxUint64})
	})
	t.Run("not with a key that no store takes", func(t *testing.T) {
		r := newRig(t, idem.Config{})
		token := r.fresh("k", 0).Token
		for name, c := range map[string]idem.Claim{
			"key": {Token: token}, "scope": {Token: token, Key: "k", Scope: string(make([]byte, 256))},
		} {
			require.ErrorIs(t, r.Complete(t.Context(), c, idem.Response{}), idem.ErrKey, name)
			require.ErrorIs(t, r.Extend(t.Context(), c, 0), idem.ErrKey, name)
			require.ErrorIs(t, r.Abandon(t.Context(), c), idem.ErrKey, name)
		}
	})
}

// A wrapper that puts its own prefix before keys may get it wrong on the way back. Whatever that claim is taken
// for, it must not touch the key's record, nor harm the engine, whose sweeper comes upon the result later.
func TestClaimWithAnotherName(t *testing.T) {
	for name, change := range map[string]func(c *idem.Claim){
		"key":       func(c *idem.Claim) { c.Key = "other" },
		"scope":     func(c *idem.Claim) { c.Scope = "other" },
		"long key":  func(c *idem.Claim) { c.Key = strings.Repeat("k", 70_000) },
		"empty key": func(c *idem.Claim) { c.Key = "" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, idem.Config{}, func(r rig) {
				c := r.fresh("k", time.Hour)
				changed := c
				change(&changed)
				extended := r.Extend(r.Context(), changed, time.Second)
				completed := r.Complete(r.Context(), changed, idem.Response{TTL: time.Second})
				require.Equal(r, extended, completed)
				out, err := r.Begin(r.Context(), idem.Request{Scope: changed.Scope, Key: changed.Key})
				if completed == nil {
					require.Equal(r, idem.Replay, out.State, "what was recorded is found")
				} else if err == nil {
					require.Equal(r, idem.Fresh, out.State)
				}
				require.Equal(r, idem.InProgress, r.state("k"))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(r, 1, r.Len())
				r.complete(c, "b")
				r.replays("k", "b")
			})
		})
	}
}

// A claim that JSON would change into one on another key is refused: completed there, its own key would run again.
func TestClaimOfAKeyThatIsNoTextIsNoJSON(t *testing.T) {
	for _, claim := range []idem.Claim{{Key: "order-\xff", Token: 1}, {Scope: "\xff", Key: "k", Token: 1}} {
		_, err := json.Marshal(claim)
		require.ErrorContains(t, err, "valid UTF-8")
	}
	want := idem.Claim{Scope: "<&>\x00", Key: "\u2028\"", Token: 1<<64 - 1, Fingerprint: idem.Fingerprint{1, 255}}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	var got idem.Claim
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, want, got)
}
