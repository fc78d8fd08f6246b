package redisstore_test

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/crowd"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// A fleet is stores that stand for processes: each has a client, and thus connections, of its own.
func fleet(tb testing.TB, n int, addr string, cfg redisstore.Config) []*redisstore.Store {
	tb.Helper()
	stores := make([]*redisstore.Store, n)
	for i := range stores {
		stores[i] = open(tb, client(tb, &redis.Options{Addr: addr}), cfg)
	}
	return stores
}

func TestEachKeyIsClaimedOnce(t *testing.T) {
	server, _ := start(t)
	const racers, keys = 16, 1000
	stores := fleet(t, 2, server.Addr, redisstore.Config{Prefix: prefix()})
	var mu sync.Mutex
	owners := map[string]int{}
	begun, errs := make(chan struct{}), make(chan error, racers)
	for i := range racers {
		go func() {
			<-begun
			var err error
			for k := 0; k < keys && err == nil; k++ {
				var out idem.Outcome
				out, err = stores[i%len(stores)].Begin(t.Context(), request(strconv.Itoa(k)))
				if out.State == idem.Fresh {
					mu.Lock()
					owners[out.Claim.Key]++
					mu.Unlock()
				}
			}
			errs <- err
		}()
	}
	close(begun)
	for range racers {
		require.NoError(t, <-errs)
	}
	require.Len(t, owners, keys)
	for key, n := range owners {
		require.Equal(t, 1, n, "owners of %s", key)
	}
}

// calls returns how many scripts a server has run.
func calls(tb testing.TB, c *redis.Client) int {
	tb.Helper()
	stats, err := c.Info(tb.Context(), "commandstats").Result()
	require.NoError(tb, err)
	sum := 0
	for line := range strings.Lines(stats) {
		var n int
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &n); err == nil {
			sum += n
		}
	}
	return sum
}

// openMember opens the store of a process whose callers wait.
func openMember(job crowd.Job) (crowd.Member, error) {
	opt, err := redis.ParseURL(job.URL)
	if err != nil {
		return crowd.Member{}, err
	}
	s, err := redisstore.New(redis.NewClient(opt), redisstore.Config{Prefix: job.Space, MaxWaitersPerKey: job.Callers})
	return crowd.Member{Store: s, Waiting: s.Waiting}, err
}

func TestTenThousandWaitersInFourProcesses(t *testing.T) {
	const callers, processes = 10_000, 4
	server, c := start(t)
	cfg := redisstore.Config{Prefix: prefix()}
	owner := open(t, c, cfg)
	claim := fresh(t, owner, request("k"))
	before, began := calls(t, c), time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiters, err := crowd.Start(ctx, crowd.Job{
		URL: "redis://" + server.Addr, Space: cfg.Prefix, Request: waiting(request("k")), Callers: callers / processes,
	}, processes)
	require.NoError(t, err)
	registered(t, c, name(cfg.Prefix, "k"), processes)
	subscribed(t, c, cfg.Prefix, processes)
	require.NoError(t, owner.Complete(t.Context(), claim, text("done")))
	got, err := waiters.Wait()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"replay done": callers}, got.Answers)
	// A look when the first one comes, one when the store is subscribed, one when the key is done, and now and then
	// one, for those who come between and while that takes long.
	n := calls(t, c) - before
	t.Logf("%d callers waited at the cost of %d calls", callers, n)
	require.LessOrEqual(t, n, processes*(10+int(time.Since(began)/time.Second)))
}

// Without a hint a caller looks after a second. One of five must be quicker than that even on a busy machine.
func TestHintReachesAnotherProcess(t *testing.T) {
	server, c := start(t)
	ways := map[string]func(*redisstore.Store, idem.Claim) error{
		"complete": func(s *redisstore.Store, c idem.Claim) error { return s.Complete(t.Context(), c, text("done")) },
		"abandon":  func(s *redisstore.Store, c idem.Claim) error { return s.Abandon(t.Context(), c) },
		"sooner":   func(s *redisstore.Store, c idem.Claim) error { return s.Extend(t.Context(), c, time.Microsecond) },
		"forget": func(s *redisstore.Store, c idem.Claim) error {
			_, err := s.Forget(t.Context(), c.Scope, c.Key)
			return err
		},
		"resolve": func(s *redisstore.Store, c idem.Claim) error {
			return s.Resolve(t.Context(), c.Scope, c.Key, text("done"))
		},
	}
	for way, do := range ways {
		t.Run(way, func(t *testing.T) {
			cfg := redisstore.Config{Prefix: prefix()}
			stores := fleet(t, 2, server.Addr, cfg)
			quickest := time.Hour
			for i := range 5 {
				key := strconv.Itoa(i)
				claim := fresh(t, stores[0], request(key))
				waits := begin(t.Context(), stores[1], waiting(request(key)))
				subscribed(t, c, cfg.Prefix, 1)
				registered(t, c, name(cfg.Prefix, key), 1)
				from := time.Now()
				require.NoError(t, do(stores[0], claim))
				a := receive(t, waits)
				require.NoError(t, a.err)
				quickest = min(quickest, a.at.Sub(from))
			}
			require.Less(t, quickest, 500*time.Millisecond)
		})
	}
}

func TestInstancesThatWaitAreBounded(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	claim := fresh(t, s, request("k"))
	full := strings.Repeat("idem:w:0123456789abcdef ", 16384/24+1)
	require.NoError(t, c.Append(t.Context(), name(p, "k"), full).Err())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Begin(ctx, waiting(request("k")))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, c.Get(t.Context(), name(p, "k")).Val(), 57+len(full))
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	require.NotContains(t, c.Get(t.Context(), name(p, "k")).Val(), full)
}

// A waiter that left must not be in the record for ever, nor may it be there twice.
func TestInstanceIsEnteredOnce(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	fresh(t, s, request("k"))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := s.Begin(ctx, waiting(request("k")))
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	registered(t, c, name(p, "k"), 1)
}

// Close ends what the store has started, and leaves the client alone.
func TestCloseLeavesNothingBehind(t *testing.T) {
	server, c := start(t)
	proxy := proxied(t, server.Addr)
	through := client(t, &redis.Options{Addr: proxy.Addr()})
	p := prefix()
	s := open(t, through, redisstore.Config{Prefix: p})
	fresh(t, s, request("k"))
	waits := begin(t.Context(), s, waiting(request("k")))
	subscribed(t, c, p, 1)
	require.NoError(t, s.Close())
	require.ErrorIs(t, receive(t, waits).err, idem.ErrClosed)
	require.NoError(t, through.Ping(t.Context()).Err())
	subscribed(t, c, p, 0)
	eventually(t, func() bool { return !strings.Contains(stacks(), "redisstore.(*Store)") }, "no goroutine of a store")
}

// stacks returns what all goroutines do.
func stacks() string {
	buf := make([]byte, 16<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
