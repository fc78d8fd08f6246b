package redisstore_test

import (
	"context"
	"io"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// lateTry has a server come to a copy of Begin when the first one has long been answered, and something has been done with
// the claim: the client had sent it over a line that it then gave up.
func lateTry(t *testing.T, meanwhile func(*redisstore.Store, idem.Claim) error) *redisstore.Store {
	t.Helper()
	c, direct, tap := connect(t), connect(t), &tap{}
	c.AddHook(tap)
	s := open(t, c, redisstore.Config{OnLeaseExpiry: idem.Hold})
	everything(t, s, "known", func(string) {}) // the server has seen the scripts
	tap.take()
	req := request("k")
	req.Lease = time.Minute
	claim := fresh(t, s, req)
	sent := tap.take()[0]
	require.NoError(t, meanwhile(s, claim))
	require.NoError(t, direct.Do(t.Context(), sent...).Err())
	return s
}

func TestLateTryOfBeginLeavesALongerLeaseAlone(t *testing.T) {
	s := lateTry(t, func(s *redisstore.Store, c idem.Claim) error { return s.Extend(t.Context(), c, time.Hour) })
	require.Greater(t, expect(t, s, idem.InProgress, request("k")).Remaining, 59*time.Minute)
}

func TestLateTryOfBeginDoesNotClaimForNobody(t *testing.T) {
	s := lateTry(t, func(s *redisstore.Store, c idem.Claim) error { return s.Abandon(t.Context(), c) })
	expect(t, s, idem.Fresh, request("k"))
}

// So does what an operator did, when the server comes to a copy of it while the next owner is at work.
func TestLateTryOfAnOperatorLeavesTheNextOwnerAlone(t *testing.T) {
	ways := map[string]func(s *redisstore.Store) error{
		"forget": func(s *redisstore.Store) error {
			_, err := s.Forget(t.Context(), "s", "k")
			return err
		},
		"resolve": func(s *redisstore.Store) error { return s.Resolve(t.Context(), "s", "k", text("resolved")) },
	}
	for way, do := range ways {
		t.Run(way, func(t *testing.T) {
			c, direct, tap := connect(t), connect(t), &tap{}
			c.AddHook(tap)
			s := open(t, c, redisstore.Config{})
			everything(t, s, "known", func(string) {}) // the server has seen the scripts
			fresh(t, s, request("k"))
			tap.take()
			require.NoError(t, do(s))
			sent := tap.take()
			_, err := s.Forget(t.Context(), "s", "k")
			require.NoError(t, err)
			claim := fresh(t, s, request("k"))
			require.Equal(t, "L", direct.Do(t.Context(), sent[len(sent)-1]...).Val())
			expect(t, s, idem.InProgress, request("k"))
			require.NoError(t, s.Complete(t.Context(), claim, text("done")))
		})
	}
}

// An operator's call is about the record that is there when it takes effect, not when it was looked at.
func TestOperatorWhoComesUponAnotherOwner(t *testing.T) {
	c, p := connect(t), prefix()
	slow := connect(t)
	s, other := open(t, slow, redisstore.Config{Prefix: p}), open(t, c, redisstore.Config{Prefix: p})
	everything(t, s, "known", func(string) {})
	between := &afterOne{}
	slow.AddHook(between)
	ways := []struct {
		name string
		do   func(key string) error
		want idem.State
	}{
		{"forget", func(key string) error {
			found, err := s.Forget(t.Context(), "s", key)
			require.True(t, found)
			return err
		}, idem.Fresh},
		{"resolve", func(key string) error { return s.Resolve(t.Context(), "s", key, text("resolved")) }, idem.Replay},
	}
	for _, way := range ways {
		claim := fresh(t, other, request(way.name))
		between.then = func() {
			require.NoError(t, other.Abandon(t.Context(), claim))
			fresh(t, other, request(way.name))
		}
		require.NoError(t, way.do(way.name), way.name)
		require.Nil(t, between.then)
		expect(t, other, way.want, request(way.name))
	}
}

// afterOne calls then, once, when a script has been carried out, whose caller is then told err.
type afterOne struct {
	then func()
	err  error
}

func (a *afterOne) DialHook(next redis.DialHook) redis.DialHook { return next }
func (a *afterOne) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *afterOne) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if then := a.then; then != nil && cmd.Name() == "evalsha" {
			a.then = nil
			then()
			if a.err != nil {
				cmd.SetErr(a.err)
				return a.err
			}
		}
		return err
	}
}

// A Begin that says that there was no room has no claim, also when it was granted one and there was no room to say so.
func TestServerThatIsFullWhenBeginComesAgain(t *testing.T) {
	server, c := start(t)
	lossy := client(t, &redis.Options{Addr: server.Addr})
	hook := &afterOne{err: io.EOF}
	lossy.AddHook(hook)
	p := prefix()
	s, other := open(t, lossy, redisstore.Config{Prefix: p}), open(t, c, redisstore.Config{Prefix: p})
	everything(t, s, "known", func(string) {})
	limit := func(most string) {
		_, err := server.Do(t.Context(), "CONFIG", "SET", "maxmemory", most)
		require.NoError(t, err)
	}
	hook.then = func() { limit("1mb") }
	_, err := s.Begin(t.Context(), request("k"))
	require.ErrorIs(t, err, idem.ErrFull)
	limit("0")
	eventually(t, func() bool {
		_, found, err := other.Lookup(t.Context(), "s", "k")
		return err == nil && !found
	}, "the claim is given up")
}

func TestLongestLeaseIsToldAsItIs(t *testing.T) {
	s := open(t, connect(t), redisstore.Config{})
	req := request("k")
	req.Lease = math.MaxInt64
	told := expect(t, s, idem.Fresh, req).Remaining
	require.InDelta(t, told.Hours(), expect(t, s, idem.InProgress, req).Remaining.Hours(), 1)
}

// One line that goes dead costs a beat, and not the claim: the beat ends in time for the next one, over another line.
func TestHeartbeatOutlivesALineThatGoesDead(t *testing.T) {
	t.Parallel()
	for _, heeds := range []bool{true, false} {
		server, direct := start(t)
		proxy, tap := proxied(t, server.Addr), &tap{}
		c := client(t, &redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: heeds})
		c.AddHook(tap)
		p := prefix()
		s, other := open(t, c, redisstore.Config{Prefix: p}), open(t, direct, redisstore.Config{Prefix: p})
		req := request("k")
		req.Lease = 3 * time.Second
		left := func() time.Duration { return expect(t, other, idem.InProgress, req).Remaining }
		_, err := idem.Do(t.Context(), s, req, func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
			tap.take()
			proxy.BlackHole(true)
			eventually(t, func() bool { return len(tap.take()) > 0 }, "a beat, which is lost")
			require.Less(t, left(), 2500*time.Millisecond)
			proxy.BlackHole(false) // for new lines
			eventually(t, func() bool { return left() > 2500*time.Millisecond }, "another beat, which is not")
			return text("done"), ctx.Err()
		})
		require.NoError(t, err, "client heeds deadlines: %v", heeds)
	}
}

// Also while no connection can be had: all that the pool may have are taken.
func TestSettlingEndsWithoutAConnection(t *testing.T) {
	t.Parallel()
	for _, heeds := range []bool{true, false} {
		server, _ := start(t)
		c := client(t, &redis.Options{Addr: server.Addr, PoolSize: 1, ContextTimeoutEnabled: heeds})
		s := open(t, c, redisstore.Config{})
		claim := fresh(t, s, request("k"))
		taken := c.Conn()
		require.NoError(t, taken.Ping(t.Context()).Err())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		from := time.Now()
		require.ErrorIs(t, s.Complete(ctx, claim, text("done")), context.DeadlineExceeded)
		cancel()
		require.Less(t, time.Since(from), 2*time.Second, "client heeds deadlines: %v", heeds)
		require.ErrorIs(t, s.Complete(ctx, claim, text("done")), context.DeadlineExceeded, "a ctx that has ended")
		require.Less(t, time.Since(from), 8*time.Second, "client heeds deadlines: %v", heeds)
		require.NoError(t, taken.Close())
	}
}
