package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-5bb5eb37/idem/internal/heed"
)

// pingEvery is how long a subscription is silent before it is tested: a line may go dead without a word.
const pingEvery = 5 * time.Second

// goRedis is the [Adapter] of go-redis.
type goRedis struct {
	client redis.UniversalClient
	runner processor
}

// A processor is what sends commands: a client, or one connection of it.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

func newGoRedis(client redis.UniversalClient) goRedis {
	if heeds(client) {
		return goRedis{client, client}
	}
	return goRedis{client, patient{client}}
}

// heeds tells whether a client heeds deadlines of contexts. By default those of go-redis don't: on a line that went
// dead they sit through all of their timeouts and retries.
func heeds(client redis.UniversalClient) bool {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return client.Options().ContextTimeoutEnabled
	default:
		return false
	}
}

// patient is for clients that have no such copy. Its calls wait in a goroutine of their own, which ends when the
// client says so.
type patient struct{ client processor }

// Process sends a copy of cmd, since the client may still write to it when the caller has left.
func (p patient) Process(ctx context.Context, cmd redis.Cmder) error {
	own, err := heed.Call(ctx, func(ctx context.Context) (*redis.Cmd, error) {
		own := redis.NewCmd(ctx, cmd.Args()...)
		own.SetFirstKeyPos(3)
		return own, p.client.Process(ctx, own)
	})
	if own != nil {
		cmd.(*redis.Cmd).SetVal(own.Val())
	}
	return err
}

// Run implements [Runner]. That scripts are sent again when a connection is lost is go-redis's own doing.
func (g goRedis) Run(ctx context.Context, script *Script, key string, args ...string) (string, error) {
	text, err := eval(ctx, g.runner, script, key, args)
	g.heal(ctx, err)
	return text, err
}

// heal has a cluster's client ask who has which keys, when it was sent to the wrong server or to one that does not answer.
// go-redis does so by itself only for the former, and only where it chooses the server; otherwise it asks once a minute.
func (g goRedis) heal(ctx context.Context, err error) {
	cluster, ok := g.client.(*redis.ClusterClient)
	if !ok || err == nil {
		return
	}
	var network *net.OpError
	if strings.HasPrefix(err.Error(), "MOVED") || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) {
		cluster.ReloadState(ctx)
	}
}

func eval(ctx context.Context, p processor, script *Script, key string, args []string) (string, error) {
	text, err := evalWith(ctx, p, "evalsha", script.SHA, key, args)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		return evalWith(ctx, p, "eval", script.Text, key, args)
	}
	return text, err
}

func evalWith(ctx context.Context, p processor, verb, script, key string, args []string) (string, error) {
	all := make([]any, 4, 4+len(args))
	all[0], all[1], all[2], all[3] = verb, script, 1, key
	for _, arg := range args {
		all = append(all, arg)
	}
	cmd := redis.NewCmd(ctx, all...)
	cmd.SetFirstKeyPos(3)
	if err := p.Process(ctx, cmd); err != nil {
		return "", err
	}
	return cmd.Text()
}

// Pinned implements [Adapter].
func (g goRedis) Pinned(ctx context.Context, key string, fn func(Conn) error) error {
	node, err := g.node(ctx, key)
	if err != nil {
		return err
	}
	conn := withOwnOptions(node).Conn()
	defer func() { _ = conn.Close() }()
	err = fn(pinned{conn})
	g.heal(ctx, err)
	return err
}

// withOwnOptions returns a client with the same connections and a copy of the options. Connections that are made through a
// Conn write to those that it was made of, without a lock that others share.
func withOwnOptions(client *redis.Client) *redis.Client {
	options := client.Options()
	own := client.WithTimeout(options.ReadTimeout) // which sets both, and is the way to a copy
	own.Options().WriteTimeout = options.WriteTimeout
	return own
}

// node returns the client of the server that has the key.
func (g goRedis) node(ctx context.Context, key string) (*redis.Client, error) {
	switch client := g.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(ctx, key)
	default:
		return nil, fmt.Errorf("redisstore: Config.MinReplicas needs a *redis.Client or *redis.ClusterClient, not a %T", client)
	}
}

// pinned is the [Conn] of go-redis. Its connection is not replaced when it is lost.
type pinned struct{ conn *redis.Conn }

// Run implements [Runner].
func (p pinned) Run(ctx context.Context, script *Script, key string, args ...string) (string, error) {
	return eval(ctx, p.conn, script, key, args)
}

// Wait implements [Conn].
func (p pinned) Wait(ctx context.Context, replicas int, timeout time.Duration) (int, error) {
	n, err := p.conn.Wait(ctx, replicas, timeout).Result()
	return int(n), err
}

// Info implements [Adapter].
func (g goRedis) Info(ctx context.Context) (string, error) {
	return g.client.Info(ctx, "memory").Result()
}

// Subscribe implements [Adapter]. It reads until ctx is done or the line is lost, and does not use the channel that
// go-redis offers, which drops what is not read quickly, and connects again without saying so.
func (g goRedis) Subscribe(ctx context.Context, channel string, ready func(), message func(string)) error {
	sub := g.client.Subscribe(ctx, channel)
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() }) // it ends a read that ctx does not
	defer func() {
		stop()
		_ = sub.Close()
	}()
	for tested := false; ; {
		got, err := sub.ReceiveTimeout(ctx, pingEvery)
		if err != nil && !tested && ctx.Err() == nil && isTimeout(err) {
			tested, err = true, sub.Ping(ctx)
		} else {
			tested = false
		}
		switch got := got.(type) {
		case *redis.Subscription:
			ready()
		case *redis.Message:
			message(got.Payload)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}
