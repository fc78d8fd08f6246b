// Package rueidisadapter makes a [redisstore.Store] on a rueidis client. Calls of many goroutines share a few
// connections there and travel together, which serves several times as many of them as a pool of connections
// does.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:6379"}})
//	if err != nil {
//		return err
//	}
//	defer client.Close()
//	store, err := rueidisadapter.New(client, redisstore.Config{})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
package rueidisadapter

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/seed-5bb5eb37/idem/internal/heed"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// tries is how often a script is sent when the line to the server is lost. rueidis itself sends again only what
// does not write, as it can't know that scripts recognise who comes twice.
const tries = 3

// New is [redisstore.New] for a rueidis client, of a single server, Sentinel or a cluster.
func New(client rueidis.Client, cfg redisstore.Config) (*redisstore.Store, error) {
	if client == nil {
		return nil, errors.New("rueidisadapter: nil client")
	}
	return redisstore.NewWith(adapter{client}, cfg)
}

// adapter implements [redisstore.Adapter].
type adapter struct{ client rueidis.Client }

var _ redisstore.Adapter = adapter{}

// A doer is a client or one connection of it.
type doer interface {
	B() rueidis.Builder
	Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult
}

// Run implements [redisstore.Runner]. It heeds ctx, of whose end rueidis is not told, see run; nor would rueidis heed it
// while it connects, which takes as long as its Dialer's timeout when nobody answers.
func (a adapter) Run(ctx context.Context, script *redisstore.Script, key string, args ...string) (string, error) {
	return heed.Call(ctx, func(ctx context.Context) (string, error) { return a.run(ctx, script, key, args) })
}

// run does not tell rueidis of the end of ctx. At a deadline it would close the connection, which others share: they
// would be told that theirs had passed.
func (a adapter) run(ctx context.Context, script *redisstore.Script, key string, args []string) (text string, err error) {
	for range tries {
		if text, err = eval(context.WithoutCancel(ctx), a.client, script, key, args); !lostLine(ctx, err) {
			break
		}
	}
	return text, err
}

// lostLine reports whether err came instead of an answer, and not because ctx or the client had ended.
func lostLine(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil || errors.Is(err, rueidis.ErrClosing) {
		return false
	}
	_, answered := rueidis.IsRedisErr(err)
	return !answered
}

func eval(ctx context.Context, d doer, script *redisstore.Script, key string, args []string) (string, error) {
	cmd := d.B().Evalsha().Sha1(script.SHA).Numkeys(1).Key(key).Arg(args...).Build()
	text, err := d.Do(ctx, cmd).ToString()
	if refusal, ok := rueidis.IsRedisErr(err); ok && refusal.IsNoScript() {
		cmd = d.B().Eval().Script(script.Text).Numkeys(1).Key(key).Arg(args...).Build()
		return d.Do(ctx, cmd).ToString()
	}
	return text, err
}

// Pinned implements [redisstore.Adapter].
func (a adapter) Pinned(_ context.Context, _ string, fn func(redisstore.Conn) error) error {
	// In a cluster the first command with a key chooses the server.
	return a.client.Dedicated(func(c rueidis.DedicatedClient) error { return fn(pinned{c}) })
}

// pinned implements [redisstore.Conn].
type pinned struct{ client rueidis.DedicatedClient }

// Run implements [redisstore.Runner].
func (p pinned) Run(ctx context.Context, script *redisstore.Script, key string, args ...string) (string, error) {
	return eval(ctx, p.client, script, key, args)
}

// Wait implements [redisstore.Conn].
func (p pinned) Wait(ctx context.Context, replicas int, timeout time.Duration) (int, error) {
	cmd := p.client.B().Wait().Numreplicas(int64(replicas)).Timeout(timeout.Milliseconds()).Build()
	n, err := p.client.Do(ctx, cmd).AsInt64()
	return int(n), err
}

// Info implements [redisstore.Adapter].
func (a adapter) Info(ctx context.Context) (string, error) {
	return a.client.Do(ctx, a.client.B().Info().Section("memory").Build()).ToString()
}

// Subscribe implements [redisstore.Adapter]. It does not use Receive, which connects again without saying so.
func (a adapter) Subscribe(ctx context.Context, channel string, ready func(), message func(string)) error {
	conn, release := a.client.Dedicate()
	defer release()
	lost := conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnSubscription: func(rueidis.PubSubSubscription) { ready() },
		OnMessage:      func(m rueidis.PubSubMessage) { message(m.Message) },
	})
	if err := conn.Do(ctx, conn.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		return err
	}
	select {
	case err := <-lost:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
