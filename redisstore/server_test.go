package redisstore_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

func TestServerThatIsKilledBetweenBeginAndComplete(t *testing.T) {
	server, c := start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := open(t, c, redisstore.Config{})
	claim, done := fresh(t, s, request("k")), fresh(t, s, request("done"))
	require.NoError(t, s.Complete(t.Context(), done, text("done")))
	require.NoError(t, server.Kill())
	require.NoError(t, server.Start())
	expect(t, s, idem.InProgress, request("k"))
	require.Equal(t, "done", string(expect(t, s, idem.Replay, request("done")).Response.Body))
	require.NoError(t, s.Complete(t.Context(), claim, text("late")))
	require.Equal(t, "late", string(expect(t, s, idem.Replay, request("k")).Response.Body))
}

// A pair is a primary and a replica with a line between them that can go dead.
type pair struct {
	primary, replica *testserver.Redis
	line             interface{ BlackHole(bool) }
	client, heir     *redis.Client
}

func startPair(t *testing.T) pair {
	t.Helper()
	primary, c := start(t)
	line := proxied(t, primary.Addr)
	replica, err := testserver.StartRedisReplica(line.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replica.Close()) })
	return pair{primary, replica, line, c, client(t, &redis.Options{Addr: replica.Addr})}
}

// failOver ends the primary and has the replica take its place.
func (p pair) failOver(t *testing.T) {
	t.Helper()
	require.NoError(t, p.primary.Kill())
	_, err := p.replica.Do(t.Context(), "REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
}

func TestFailover(t *testing.T) {
	t.Run("with MinReplicas what was acknowledged is there", func(t *testing.T) {
		p, cfg := startPair(t), redisstore.Config{Prefix: prefix(), MinReplicas: 1, ReplicaTimeout: 10 * time.Second}
		s := open(t, p.client, cfg)
		claim, done := fresh(t, s, request("k")), fresh(t, s, request("done"))
		require.NoError(t, s.Complete(t.Context(), done, text("done")))
		p.failOver(t)
		cfg.MinReplicas = 0
		heir := open(t, p.heir, cfg)
		expect(t, heir, idem.InProgress, request("k"))
		require.Equal(t, "done", string(expect(t, heir, idem.Replay, request("done")).Response.Body))
		require.NoError(t, heir.Complete(t.Context(), claim, text("late")))
		expect(t, heir, idem.Replay, request("k"))
	})
	t.Run("without it a claim may be lost, and its token still grows", func(t *testing.T) {
		p, cfg := startPair(t), redisstore.Config{Prefix: prefix()}
		s := open(t, p.client, cfg)
		p.line.BlackHole(true)
		claim := fresh(t, s, request("k"))
		p.failOver(t)
		heir := open(t, p.heir, cfg)
		require.Greater(t, fresh(t, heir, request("k")).Token, claim.Token)
		require.ErrorIs(t, heir.Complete(t.Context(), claim, text("late")), idem.ErrClaimLost)
	})
}

func TestTooFewReplicas(t *testing.T) {
	p, cfg := startPair(t), redisstore.Config{Prefix: prefix(), MinReplicas: 1, ReplicaTimeout: 100 * time.Millisecond}
	s := open(t, p.client, cfg)
	cfg.ReplicaTimeout = 10 * time.Second
	claim := fresh(t, open(t, p.client, cfg), request("claimed"))
	cfg.MinReplicas = 0
	careless := open(t, p.client, cfg)
	p.line.BlackHole(true)

	t.Run("begin fails and gives the claim up", func(t *testing.T) {
		_, err := s.Begin(t.Context(), request("k"))
		require.ErrorIs(t, err, redisstore.ErrReplicas)
		eventually(t, func() bool {
			out, err := careless.Begin(t.Context(), request("k"))
			return err == nil && out.State == idem.Fresh
		}, "the claim is given up")
	})
	t.Run("complete says so, also when it is asked again", func(t *testing.T) {
		for range 2 {
			require.ErrorIs(t, s.Complete(t.Context(), claim, text("done")), redisstore.ErrReplicas)
			expect(t, careless, idem.Replay, request("claimed"))
		}
	})
	t.Run("resolve and forget say so once, for they are done", func(t *testing.T) {
		fresh(t, careless, request("resolved"))
		require.ErrorIs(t, s.Resolve(t.Context(), "s", "resolved", text("done")), redisstore.ErrReplicas)
		require.ErrorIs(t, s.Resolve(t.Context(), "s", "resolved", text("done")), idem.ErrNoClaim)
		expect(t, careless, idem.Replay, request("resolved"))
		_, err := s.Forget(t.Context(), "s", "resolved")
		require.ErrorIs(t, err, redisstore.ErrReplicas)
		found, err := s.Forget(t.Context(), "s", "resolved")
		require.NoError(t, err)
		require.False(t, found)
	})
	t.Run("a replay needs none", func(t *testing.T) {
		expect(t, s, idem.Replay, request("claimed"))
	})
	t.Run("without replicas at all it is the same", func(t *testing.T) {
		_, c := start(t)
		cfg := redisstore.Config{MinReplicas: 1, ReplicaTimeout: 1}
		_, err := open(t, c, cfg).Begin(t.Context(), request("k"))
		require.ErrorIs(t, err, redisstore.ErrReplicas)
	})
}

// A Begin that comes twice finds its own claim and has nothing to write, but replicas must have it all the same.
func TestReplyLostOnASingleConnection(t *testing.T) {
	p, cfg := startPair(t), redisstore.Config{Prefix: prefix(), MinReplicas: 1, ReplicaTimeout: 10 * time.Second}
	proxy := proxied(t, p.primary.Addr)
	c, dials := dialed(t, proxy.Addr())
	s := open(t, c, cfg)
	everything(t, s, "known", func(string) {})
	before := dials.Load()
	proxy.DropRepliesTo(cfg.Prefix, 1)
	claim := fresh(t, s, request("k"))
	require.Greater(t, dials.Load(), before, "the connection was cut")
	before = dials.Load()
	proxy.DropRepliesTo(cfg.Prefix, 1)
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	require.Greater(t, dials.Load(), before, "the connection was cut")
	expect(t, s, idem.Replay, request("k"))
}

func TestServerWhoseMemoryIsFull(t *testing.T) {
	server, c := start(t)
	s := open(t, c, redisstore.Config{})
	ctx := t.Context()
	claims := map[string]idem.Claim{}
	for _, key := range []string{"complete", "abandon", "extend", "resolve", "forget", "done"} {
		claims[key] = fresh(t, s, request(key))
	}
	require.NoError(t, s.Complete(ctx, claims["done"], text("done")))
	_, err := server.Do(ctx, "CONFIG", "SET", "maxmemory", "1mb")
	require.NoError(t, err)

	_, err = s.Begin(ctx, request("new"))
	require.ErrorIs(t, err, idem.ErrFull)
	expect(t, s, idem.Replay, request("done"))
	expect(t, s, idem.InProgress, request("complete"))
	waits := begin(ctx, s, waiting(request("complete")))
	require.NoError(t, s.Extend(ctx, claims["extend"], long))
	require.NoError(t, s.Abandon(ctx, claims["abandon"]))
	require.NoError(t, s.Resolve(ctx, "s", "resolve", text("resolved")))
	found, err := s.Forget(ctx, "s", "forget")
	require.NoError(t, err)
	require.True(t, found)
	require.NoError(t, s.Complete(ctx, claims["complete"], text("done")))
	require.Equal(t, idem.Replay.String(), receive(t, waits).out.State.String())
	expect(t, s, idem.Replay, request("complete"))
	expect(t, s, idem.Replay, request("resolve"))
}

// A log is what a store wrote.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestWarningAboutEviction(t *testing.T) {
	warned := func(c redis.UniversalClient) *logged {
		var l logged
		open(t, c, redisstore.Config{Logger: slog.New(slog.NewTextHandler(&l, nil))})
		return &l
	}
	t.Run("when records may be evicted", func(t *testing.T) {
		_, c := start(t, "--maxmemory-policy", "allkeys-lru")
		l := warned(c)
		eventually(t, func() bool { return strings.Contains(l.String(), "maxmemory-policy=allkeys-lru") }, "warning")
		require.Equal(t, 1, strings.Count(l.String(), "\n"), l.String())
	})
	t.Run("when the server was down as the store was made", func(t *testing.T) {
		server, c := start(t, "--maxmemory-policy", "allkeys-lru")
		require.NoError(t, server.Stop())
		l := warned(c)
		_, err := c.Ping(t.Context()).Result()
		require.Error(t, err)
		require.NoError(t, server.Start())
		eventually(t, func() bool { return strings.Contains(l.String(), "maxmemory-policy=allkeys-lru") }, "warning")
		require.Equal(t, 1, strings.Count(l.String(), "\n"), l.String())
	})
	t.Run("when the server does not say", func(t *testing.T) {
		server, _ := start(t)
		_, err := server.Do(t.Context(), "ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-info")
		require.NoError(t, err)
		l := warned(client(t, &redis.Options{Addr: server.Addr, Username: "limited", Password: "any"}))
		eventually(t, func() bool { return strings.Contains(l.String(), "does not tell its maxmemory-policy") }, "warning")
	})
	t.Run("not when they stay", func(t *testing.T) {
		_, c := start(t)
		tap := &infoTap{done: make(chan struct{})}
		c.AddHook(tap)
		l := warned(c)
		<-tap.done
		require.Empty(t, l.String())
	})
}

// infoTap closes done when INFO was answered.
type infoTap struct {
	tap
	done chan struct{}
}

func (i *infoTap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "info" {
			close(i.done)
		}
		return err
	}
}

// Hints are no more than that.
func TestUserThatMayNotPublish(t *testing.T) {
	server, c := start(t)
	_, err := server.Do(t.Context(), "ACL", "SETUSER", "limited", "on", "nopass", "~*", "resetchannels", "+@all")
	require.NoError(t, err)
	limited := client(t, &redis.Options{Addr: server.Addr, Username: "limited", Password: "any"})
	p := prefix()
	owner, s := open(t, limited, redisstore.Config{Prefix: p}), open(t, c, redisstore.Config{Prefix: p})
	claim := fresh(t, owner, request("k"))
	waits := begin(t.Context(), s, waiting(request("k")))
	also := begin(t.Context(), owner, waiting(request("k")))
	registered(t, c, name(p, "k"), 2)
	require.NoError(t, owner.Complete(t.Context(), claim, text("done")))
	for _, waits := range []<-chan answer{waits, also} {
		a := receive(t, waits)
		require.NoError(t, a.err)
		require.Equal(t, idem.Replay.String(), a.out.State.String())
	}
}

// The README tells which rights a user needs.
func TestUserWithTheLeastRights(t *testing.T) {
	server, _ := start(t)
	rights := "on nopass resetkeys ~idem:* resetchannels &idem:w:* -@all +evalsha +eval +time +get +set +append " +
		"+publish +subscribe +info +ping"
	_, err := server.Do(t.Context(), append([]string{"ACL", "SETUSER", "least"}, strings.Fields(rights)...)...)
	require.NoError(t, err)
	var l logged
	s := open(t, client(t, &redis.Options{Addr: server.Addr, Username: "least", Password: "any"}),
		redisstore.Config{Prefix: "idem", Logger: slog.New(slog.NewTextHandler(&l, nil))})
	everything(t, s, "k", func(string) {})
	claim := fresh(t, s, request("waited for"))
	waits := begin(t.Context(), s, waiting(request("waited for")))
	eventually(t, func() bool {
		n, err := server.Do(t.Context(), "PUBSUB", "CHANNELS")
		return err == nil && n != ""
	}, "subscribed")
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	require.NoError(t, receive(t, waits).err)
	require.Empty(t, l.String())
}
