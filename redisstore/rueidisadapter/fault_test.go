package rueidisadapter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/faultproxy"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
	"github.com/seed-5bb5eb37/idem/redisstore/rueidisadapter"
)

const long = time.Hour

func request(key string) idem.Request {
	return idem.Request{Scope: "s", Key: key, Fingerprint: idem.FingerprintOf([]byte("ours")), Lease: long}
}

func waiting(req idem.Request) idem.Request {
	req.Wait = true
	return req
}

func text(body string) idem.Response { return idem.Response{Status: 200, Body: []byte(body)} }

func expect(tb testing.TB, s *redisstore.Store, want idem.State, req idem.Request) idem.Outcome {
	tb.Helper()
	out, err := s.Begin(tb.Context(), req)
	require.NoError(tb, err)
	require.Equal(tb, want.String(), out.State.String(), "state of %q", req.Key)
	return out
}

// eventually wants ok to become true within twenty seconds.
func eventually(tb testing.TB, ok func() bool, what string) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); <-time.After(time.Millisecond) {
		require.True(tb, time.Now().Before(end), "%s: not yet", what)
	}
}

// do has a server carry out a command.
func do(tb testing.TB, server *testserver.Redis, command ...string) string {
	tb.Helper()
	reply, err := server.Do(tb.Context(), command...)
	require.NoError(tb, err, strings.Join(command, " "))
	return reply
}

// start starts a private server and a proxy for it.
func start(tb testing.TB) (*testserver.Redis, *faultproxy.Proxy) {
	tb.Helper()
	server, err := testserver.StartRedis()
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, server.Close()) })
	proxy, err := faultproxy.New(server.Addr)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, proxy.Close()) })
	return server, proxy
}

// begin calls Begin in the background and returns what will become of it.
func begin(ctx context.Context, s *redisstore.Store, req idem.Request) <-chan string {
	answers := make(chan string, 1)
	go func() {
		out, err := s.Begin(ctx, req)
		answers <- fmt.Sprint(out.State, " ", err)
	}()
	return answers
}

func receive(tb testing.TB, answers <-chan string) string {
	tb.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(20 * time.Second):
		require.FailNow(tb, "Begin did not return")
		return ""
	}
}

// Each of these is carried out by the server, and its reply is lost, so the adapter sends it again.
func TestWhoComesTwiceIsRecognised(t *testing.T) {
	server, proxy := start(t)
	cfg := redisstore.Config{Prefix: "p"}
	s := open(t, client(t, "redis://"+proxy.Addr()), cfg)
	other := open(t, client(t, "redis://"+server.Addr), cfg)
	known := expect(t, s, idem.Fresh, request("known")).Claim
	require.NoError(t, s.Extend(t.Context(), known, long))
	require.NoError(t, s.Complete(t.Context(), known, text("done")))
	runs := func() (n int) {
		for line := range strings.Lines(do(t, server, "INFO", "commandstats")) {
			_, _ = fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &n)
		}
		return n
	}
	lose := func(call func()) {
		before := runs()
		proxy.DropRepliesTo("p:1:s:", 1)
		call()
		require.Equal(t, before+2, runs(), "the script was run twice")
	}
	var claim idem.Claim
	lose(func() { claim = expect(t, s, idem.Fresh, request("k")).Claim })
	expect(t, other, idem.InProgress, request("k"))
	lose(func() { require.NoError(t, s.Extend(t.Context(), claim, 2*long)) })
	require.Greater(t, expect(t, other, idem.InProgress, request("k")).Remaining, long)
	lose(func() { require.NoError(t, s.Complete(t.Context(), claim, text("done"))) })
	require.Equal(t, "done", string(expect(t, other, idem.Replay, request("k")).Response.Body))
}

func TestDeadLine(t *testing.T) {
	_, proxy := start(t)
	s := open(t, client(t, "redis://"+proxy.Addr()), redisstore.Config{})
	claim := expect(t, s, idem.Fresh, request("claimed")).Claim
	proxy.BlackHole(true)
	cause := errors.New("out of patience")
	// Many keys, since the client makes its connections one by one, when a key first needs one.
	reqs := []idem.Request{waiting(request("k"))}
	for i := range 16 {
		reqs = append(reqs, request(fmt.Sprint("k", i)))
	}
	for _, req := range reqs {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
		from := time.Now()
		_, err := s.Begin(ctx, req)
		cancel()
		require.ErrorIs(t, err, cause)
		require.Less(t, time.Since(from), 2*time.Second)
	}
	proxy.BlackHole(false)
	proxy.Cut()
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	expect(t, s, idem.Replay, request("claimed"))
}

// A single connection is made for the call, or one that was made earlier, and has no other deadline than the client's.
func TestDeadLineOfASingleConnection(t *testing.T) {
	t.Parallel()
	_, proxy := start(t)
	s := open(t, client(t, "redis://"+proxy.Addr()), redisstore.Config{MinReplicas: 1, ReplicaTimeout: time.Millisecond})
	_, err := s.Begin(t.Context(), request("known")) // on a connection that is then idle
	require.ErrorIs(t, err, redisstore.ErrReplicas)
	proxy.BlackHole(true)
	cause := errors.New("out of patience")
	for i := range 3 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
		from := time.Now()
		_, err := s.Begin(ctx, request(fmt.Sprint("k", i)))
		cancel()
		require.ErrorIs(t, err, cause)
		require.Less(t, time.Since(from), 2*time.Second)
	}
	proxy.BlackHole(false)
	proxy.Cut()
	eventually(t, func() bool {
		_, err := s.Begin(t.Context(), request("after"))
		return errors.Is(err, redisstore.ErrReplicas)
	}, "it connects again")
}

// An overheard client notes whether a call on its connections, which others share, has a deadline.
type overheard struct {
	rueidis.Client
	limited atomic.Bool
}

func (o *overheard) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	if _, ends := ctx.Deadline(); ends || ctx.Done() != nil {
		o.limited.Store(true)
	}
	return o.Client.Do(ctx, cmd)
}

// At a deadline rueidis would close the connection, and tell others that theirs had passed.
func TestDeadLineIsNotTheConnections(t *testing.T) {
	server, _ := start(t)
	c := &overheard{Client: client(t, "redis://"+server.Addr)}
	s := open(t, c, redisstore.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := s.Begin(ctx, request("k"))
	require.NoError(t, err)
	require.NoError(t, s.Complete(ctx, out.Claim, text("done")))
	require.False(t, c.limited.Load())
}

func TestScriptsAreLoadedAgainAfterAFlush(t *testing.T) {
	server, _ := start(t)
	s := open(t, client(t, "redis://"+server.Addr), redisstore.Config{})
	claim := expect(t, s, idem.Fresh, request("k")).Claim
	do(t, server, "SCRIPT", "FLUSH")
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	do(t, server, "SCRIPT", "FLUSH")
	expect(t, s, idem.Replay, request("k"))
}

func TestWaiterIsAnsweredThoughItsSubscriptionWasCut(t *testing.T) {
	server, proxy := start(t)
	cfg := redisstore.Config{Prefix: "p"}
	owner := open(t, client(t, "redis://"+server.Addr), cfg)
	s := open(t, client(t, "redis://"+proxy.Addr()), cfg)
	subscribed := func() bool { return do(t, server, "PUBSUB", "CHANNELS", "p:w:*") != "" }
	for range 3 { // it subscribes again each time
		claim := expect(t, owner, idem.Fresh, request("k")).Claim
		waits := begin(t.Context(), s, waiting(request("k")))
		eventually(t, subscribed, "subscribed")
		proxy.Cut()
		require.NoError(t, owner.Complete(t.Context(), claim, text("done")))
		require.Equal(t, "replay <nil>", receive(t, waits))
		_, err := owner.Forget(t.Context(), "s", "k")
		require.NoError(t, err)
	}
	eventually(t, subscribed, "subscribed")
	require.NoError(t, s.Close())
	eventually(t, func() bool { return !subscribed() }, "not subscribed")
}

// Without a hint a caller looks after a second. One of five must be quicker than that even on a busy machine.
func TestHintReachesAnotherProcess(t *testing.T) {
	server, _ := start(t)
	cfg := redisstore.Config{Prefix: "p"}
	owner := open(t, client(t, "redis://"+server.Addr), cfg)
	s := open(t, client(t, "redis://"+server.Addr), cfg)
	quickest := time.Hour
	for i := range 5 {
		req := request(fmt.Sprint(i))
		claim := expect(t, owner, idem.Fresh, req).Claim
		waits := begin(t.Context(), s, waiting(req))
		eventually(t, func() bool {
			return do(t, server, "PUBSUB", "CHANNELS", "p:w:*") != "" && strings.Contains(do(t, server, "GET", "p:1:s:"+req.Key), "p:w:")
		}, "waits")
		from := time.Now()
		require.NoError(t, owner.Complete(t.Context(), claim, text("done")))
		require.Equal(t, "replay <nil>", receive(t, waits))
		quickest = min(quickest, time.Since(from))
	}
	require.Less(t, quickest, 500*time.Millisecond)
}

func TestMinReplicas(t *testing.T) {
	server, proxy := start(t)
	replica, err := testserver.StartRedisReplica(proxy.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Close()) })
	c := client(t, "redis://"+server.Addr)
	cfg := redisstore.Config{Prefix: "p", MinReplicas: 1, ReplicaTimeout: 10 * time.Second}
	claim := expect(t, open(t, c, cfg), idem.Fresh, request("k")).Claim

	proxy.BlackHole(true)
	cfg.ReplicaTimeout = 100 * time.Millisecond
	s := open(t, c, cfg)
	require.ErrorIs(t, s.Complete(t.Context(), claim, text("done")), redisstore.ErrReplicas)
	_, err = s.Begin(t.Context(), request("other"))
	require.ErrorIs(t, err, redisstore.ErrReplicas)
	eventually(t, func() bool {
		_, found, err := s.Lookup(t.Context(), "s", "other")
		return err == nil && !found
	}, "the claim is given up")

	require.NoError(t, server.Kill())
	do(t, replica, "REPLICAOF", "NO", "ONE")
	cfg.MinReplicas = 0
	expect(t, open(t, client(t, "redis://"+replica.Addr), cfg), idem.InProgress, request("k"))
}

func TestServerThatIsDownIsAnError(t *testing.T) {
	server, _ := start(t)
	s := open(t, client(t, "redis://"+server.Addr), redisstore.Config{})
	expect(t, s, idem.Fresh, request("k"))
	require.NoError(t, server.Kill())
	from := time.Now()
	_, err := s.Begin(t.Context(), request("other"))
	require.Error(t, err)
	require.Less(t, time.Since(from), 10*time.Second)
}

func TestNilClient(t *testing.T) {
	_, err := rueidisadapter.New(nil, redisstore.Config{})
	require.ErrorContains(t, err, "nil client")
	_, err = rueidisadapter.New(connect(t), redisstore.Config{TTL: -1})
	require.ErrorContains(t, err, "Config.TTL")
}
