package redisstore_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/faultproxy"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

const long = time.Hour

// request is what most tests ask for.
func request(key string) idem.Request {
	return idem.Request{Scope: "s", Key: key, Fingerprint: idem.FingerprintOf([]byte("ours")), Lease: long}
}

func waiting(req idem.Request) idem.Request {
	req.Wait = true
	return req
}

// name is the key on the server of what request asks for.
func name(prefix, key string) string { return fmt.Sprintf("%s:1:s:%s", prefix, key) }

func text(body string) idem.Response { return idem.Response{Status: 200, Body: []byte(body)} }

// expect calls Begin and wants the state.
func expect(tb testing.TB, s *redisstore.Store, want idem.State, req idem.Request) idem.Outcome {
	tb.Helper()
	out, err := s.Begin(tb.Context(), req)
	require.NoError(tb, err)
	require.Equal(tb, want.String(), out.State.String(), "state of %q", req.Key)
	return out
}

func fresh(tb testing.TB, s *redisstore.Store, req idem.Request) idem.Claim {
	tb.Helper()
	return expect(tb, s, idem.Fresh, req).Claim
}

// eventually wants ok to become true within twenty seconds.
func eventually(tb testing.TB, ok func() bool, what string) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); <-time.After(time.Millisecond) {
		require.True(tb, time.Now().Before(end), "%s: not yet", what)
	}
}

// subscribed waits until n stores with the prefix are subscribed.
func subscribed(tb testing.TB, c *redis.Client, prefix string, n int) {
	tb.Helper()
	eventually(tb, func() bool {
		channels, err := c.PubSubChannels(tb.Context(), prefix+":w:*").Result()
		return err == nil && len(channels) == n
	}, "subscriptions")
}

// registered waits until n instances are to be woken for the key.
func registered(tb testing.TB, c *redis.Client, key string, n int) {
	tb.Helper()
	eventually(tb, func() bool {
		record := c.Get(tb.Context(), key).Val()
		return len(record) >= 57 && strings.Count(record[57:], " ") == n
	}, "instances that wait")
}

// An answer is what a Begin in the background came to.
type answer struct {
	out idem.Outcome
	err error
	at  time.Time
}

// begin calls Begin in the background.
func begin(ctx context.Context, s *redisstore.Store, req idem.Request) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		out, err := s.Begin(ctx, req)
		answers <- answer{out, err, time.Now()}
	}()
	return answers
}

// receive wants an answer within twenty seconds.
func receive(tb testing.TB, answers <-chan answer) answer {
	tb.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(20 * time.Second):
		require.FailNow(tb, "Begin did not return")
		return answer{}
	}
}

// proxied returns a proxy for a server.
func proxied(tb testing.TB, addr string) *faultproxy.Proxy {
	tb.Helper()
	p, err := faultproxy.New(addr)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Close()) })
	return p
}

// dialed returns a client that counts its connections.
func dialed(tb testing.TB, addr string) (*redis.Client, *atomic.Int32) {
	tb.Helper()
	var n atomic.Int32
	dialer := redis.NewDialer(&redis.Options{DialTimeout: time.Second})
	return client(tb, &redis.Options{Addr: addr, PoolSize: 1, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.Add(1)
		return dialer(ctx, network, addr)
	}}), &n
}

// A tap is a hook that sees what a client sends, and may answer in the server's stead.
type tap struct {
	answer func(args []any) error

	mu   sync.Mutex
	sent [][]any // commands that run scripts
}

func (t *tap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (t *tap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t *tap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			t.mu.Lock()
			t.sent = append(t.sent, cmd.Args())
			t.mu.Unlock()
			if t.answer != nil {
				if err := t.answer(cmd.Args()); err != nil {
					cmd.SetErr(err)
					return err
				}
			}
		}
		return next(ctx, cmd)
	}
}

func (t *tap) take() [][]any {
	t.mu.Lock()
	defer t.mu.Unlock()
	sent := t.sent
	t.sent = nil
	return sent
}
