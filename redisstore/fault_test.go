package redisstore_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// losing returns two stores that share records, and what loses the reply to the first script that the first one has run.
func losing(t *testing.T) (s, other *redisstore.Store, lose func(*testing.T, func())) {
	t.Helper()
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	c, dials := dialed(t, proxy.Addr())
	p := prefix()
	s, other = open(t, c, redisstore.Config{Prefix: p}), open(t, direct, redisstore.Config{Prefix: p})
	// The scripts are known, so what is sent is short and comes in one piece.
	everything(t, s, "known", func(string) {})
	return s, other, func(t *testing.T, do func()) {
		t.Helper()
		before := dials.Load()
		proxy.DropRepliesTo(p, 1)
		do()
		require.Greater(t, dials.Load(), before, "the connection was cut")
	}
}

// Each of these is carried out by the server, and its reply is lost, so go-redis sends it again.
func TestWhoComesTwiceIsRecognised(t *testing.T) {
	s, other, lose := losing(t)
	t.Run("begin is fresh", func(t *testing.T) {
		var claim idem.Claim
		lose(t, func() { claim = fresh(t, s, request("begin")) })
		expect(t, other, idem.InProgress, request("begin"))
		rec, found, err := other.Lookup(t.Context(), "s", "begin")
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, claim.Token, rec.Token)
		require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	})
	t.Run("extend is no lost claim", func(t *testing.T) {
		claim := fresh(t, s, request("extend"))
		lose(t, func() { require.NoError(t, s.Extend(t.Context(), claim, 2*long)) })
		require.Greater(t, expect(t, other, idem.InProgress, request("extend")).Remaining, long)
	})
	t.Run("complete is recorded once", func(t *testing.T) {
		claim := fresh(t, s, request("complete"))
		lose(t, func() { require.NoError(t, s.Complete(t.Context(), claim, text("done"))) })
		require.Equal(t, "done", string(expect(t, other, idem.Replay, request("complete")).Response.Body))
	})
	t.Run("abandon is done once", func(t *testing.T) {
		claim := fresh(t, s, request("abandon"))
		lose(t, func() { require.NoError(t, s.Abandon(t.Context(), claim)) })
		fresh(t, other, request("abandon"))
	})
}

func TestOperatorWhoComesTwiceIsRecognised(t *testing.T) {
	s, other, lose := losing(t)
	t.Run("resolve is recorded", func(t *testing.T) {
		for key, ttl := range map[string]time.Duration{"resolve": 0, "resolve for a short time": 30 * time.Second} {
			fresh(t, other, request(key))
			resp := text("resolved")
			resp.TTL = ttl
			lose(t, func() { require.NoError(t, s.Resolve(t.Context(), "s", key, resp)) })
			require.Equal(t, "resolved", string(expect(t, other, idem.Replay, request(key)).Response.Body))
			require.ErrorIs(t, s.Resolve(t.Context(), "s", key, resp), idem.ErrNoClaim, "another call")
		}
	})
	t.Run("forget found something", func(t *testing.T) {
		fresh(t, other, request("forget"))
		for _, want := range []bool{true, false} { // and another call does not
			lose(t, func() {
				found, err := s.Forget(t.Context(), "s", "forget")
				require.NoError(t, err)
				require.Equal(t, want, found)
			})
		}
		fresh(t, other, request("forget"))
	})
}

// Some clients do not send again what may write, and some are told not to.
func TestReplyLostToAClientThatDoesNotTryAgain(t *testing.T) {
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	p := prefix()
	other := open(t, direct, redisstore.Config{Prefix: p})
	s := open(t, client(t, &redis.Options{Addr: proxy.Addr(), MaxRetries: -1}), redisstore.Config{Prefix: p})
	everything(t, s, "known", func(string) {}) // or the server would ask for the scripts instead
	proxy.DropRepliesTo(p, 1)
	claim := fresh(t, s, request("k"))
	expect(t, other, idem.InProgress, request("k"))
	proxy.DropRepliesTo(p, 1)
	require.NoError(t, s.Extend(t.Context(), claim, long))
	proxy.DropRepliesTo(p, 1)
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	require.Equal(t, "done", string(expect(t, other, idem.Replay, request("k")).Response.Body))
	proxy.DropRepliesTo(p, 1)
	found, err := s.Forget(t.Context(), "s", "k")
	require.NoError(t, err)
	require.True(t, found)
	fresh(t, other, request("k"))
	proxy.DropRepliesTo(p, 1)
	require.NoError(t, s.Resolve(t.Context(), "s", "k", text("resolved")))
}

func TestClaimThatNobodyHeardOfIsGivenUp(t *testing.T) {
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	p := prefix()
	other := open(t, direct, redisstore.Config{Prefix: p})
	// A client that does not try again, so that the store's own tries are all there are.
	c := client(t, &redis.Options{Addr: proxy.Addr(), MaxRetries: -1})
	s := open(t, c, redisstore.Config{Prefix: p})
	fresh(t, s, request("known"))
	proxy.DropRepliesTo(p, 3)
	_, err := s.Begin(t.Context(), request("k"))
	require.ErrorIs(t, err, io.EOF)
	eventually(t, func() bool {
		out, err := other.Begin(t.Context(), request("k"))
		return err == nil && out.State == idem.Fresh
	}, "the claim is given up")
}

func TestDeadLine(t *testing.T) {
	t.Parallel()
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	p := prefix()
	// With go-redis's own timeouts and retries, which add up to much more than a caller's patience.
	s := open(t, client(t, &redis.Options{Addr: proxy.Addr()}), redisstore.Config{Prefix: p})
	claim := fresh(t, s, request("claimed"))
	proxy.BlackHole(true)
	cause := errors.New("out of patience")
	quickly := func(t *testing.T, most time.Duration, call func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
		defer cancel()
		from := time.Now()
		require.Error(t, call(ctx))
		require.Less(t, time.Since(from), most)
	}
	t.Run("begin heeds the deadline", func(t *testing.T) {
		for _, req := range []idem.Request{request("k"), waiting(request("k"))} {
			quickly(t, 2*time.Second, func(ctx context.Context) error {
				_, err := s.Begin(ctx, req)
				require.ErrorIs(t, err, cause)
				return err
			})
		}
	})
	t.Run("lookup heeds the deadline", func(t *testing.T) {
		quickly(t, 2*time.Second, func(ctx context.Context) error {
			_, _, err := s.Lookup(ctx, "s", "k")
			require.ErrorIs(t, err, cause)
			return err
		})
	})
	t.Run("complete takes five seconds at most", func(t *testing.T) {
		quickly(t, 8*time.Second, func(ctx context.Context) error {
			return s.Complete(ctx, claim, text("done"))
		})
	})
	proxy.BlackHole(false)
	proxy.Cut()
	t.Run("and then all is well", func(t *testing.T) {
		require.NoError(t, s.Complete(t.Context(), claim, text("done")))
		expect(t, open(t, direct, redisstore.Config{Prefix: p}), idem.Replay, request("claimed"))
	})
}

func TestServerThatIsDownIsAnError(t *testing.T) {
	t.Parallel()
	server, c := start(t)
	s := open(t, c, redisstore.Config{})
	claim := fresh(t, s, request("k"))
	require.NoError(t, server.Kill())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	from := time.Now()
	_, err := s.Begin(ctx, request("other"))
	require.Error(t, err)
	require.Error(t, s.Abandon(ctx, claim))
	require.Less(t, time.Since(from), 8*time.Second)
}

func TestCompleteSurvivesTheCaller(t *testing.T) {
	s := open(t, connect(t), redisstore.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	claims := map[string]idem.Claim{}
	for _, key := range []string{"complete", "abandon", "extend"} {
		claims[key] = fresh(t, s, request(key))
	}
	cancel()
	require.NoError(t, s.Complete(ctx, claims["complete"], text("done")))
	expect(t, s, idem.Replay, request("complete"))
	require.NoError(t, s.Abandon(ctx, claims["abandon"]))
	fresh(t, s, request("abandon"))
	require.NoError(t, s.Extend(ctx, claims["extend"], 2*long))
	require.Greater(t, expect(t, s, idem.InProgress, request("extend")).Remaining, long)
}

func TestWaiterIsAnsweredThoughItsSubscriptionWasCut(t *testing.T) {
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	p := prefix()
	owner := open(t, direct, redisstore.Config{Prefix: p})
	s := open(t, client(t, &redis.Options{Addr: proxy.Addr()}), redisstore.Config{Prefix: p})
	claim := fresh(t, owner, request("k"))
	waits := begin(t.Context(), s, waiting(request("k")))
	registered(t, direct, name(p, "k"), 1)
	subscribed(t, direct, p, 1)
	proxy.Cut()
	require.NoError(t, owner.Complete(t.Context(), claim, text("done")))
	a := receive(t, waits)
	require.NoError(t, a.err)
	require.Equal(t, idem.Replay.String(), a.out.State.String())

	// And it is subscribed again.
	subscribed(t, direct, p, 1)
}

// It takes two pings that are five seconds apart.
func TestHeavySubscriptionOnADeadLineIsNoticed(t *testing.T) {
	server, direct := start(t)
	proxy := proxied(t, server.Addr)
	p := prefix()
	owner := open(t, direct, redisstore.Config{Prefix: p})
	s := open(t, client(t, &redis.Options{Addr: proxy.Addr()}), redisstore.Config{Prefix: p})
	fresh(t, owner, request("k"))
	ctx, cancel := context.WithCancel(t.Context())
	waits := begin(ctx, s, waiting(request("k")))
	subscribed(t, direct, p, 1)
	proxy.BlackHole(true)
	subscribed(t, direct, p, 0)
	cancel()
	require.Error(t, receive(t, waits).err)
}

func TestNothingListens(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := listener.Addr().String()
	require.NoError(t, listener.Close())
	s := open(t, client(t, &redis.Options{Addr: addr}), redisstore.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	from := time.Now()
	_, err = s.Begin(ctx, waiting(request("k")))
	require.Error(t, err)
	require.Less(t, time.Since(from), 5*time.Second)
}
