package verify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
	"github.com/seed-5bb5eb37/idem/redisstore"
	"github.com/seed-5bb5eb37/idem/redisstore/rueidisadapter"
	"github.com/seed-5bb5eb37/idem/verify/lin"
)

// childEnv has the plan of a process that is one of several on a store, and not one that runs tests.
const childEnv = "IDEM_VERIFY_CHILD"

// A plan says which store the processes of a fleet open.
type plan struct {
	Store  string // a key of stores
	URL    string
	Space  string // a prefix or schema of its own
	Policy idem.LeasePolicy
	Fault  string // a key of faults, or empty
}

// stores open what a plan asks for. What is closed with it is in the second result, to be called in order.
var stores = map[string]func(p plan) (lin.Store, []func() error, error){
	"redis":    openRedis,
	"rueidis":  openRueidis,
	"tiered":   openTiered,
	"postgres": openPostgres,
	"engine":   openEngine,
}

// command returns what starts a process on a store: this program, which then runs no tests.
func (p plan) command(ctx context.Context) *exec.Cmd {
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // it has nothing but text and numbers
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	return cmd
}

// beChild is main of a process on a store.
func beChild(text string) error {
	var p plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	open := stores[p.Store]
	if open == nil {
		return fmt.Errorf("no store %q", p.Store)
	}
	store, closers, err := open(p)
	if err != nil {
		return err
	}
	if p.Fault != "" {
		store = faults[p.Fault](store)
	}
	err = lin.Serve(store, os.Stdin, os.Stdout)
	for _, end := range closers {
		err = errors.Join(err, end())
	}
	return err
}

func openRedis(p plan) (lin.Store, []func() error, error) {
	opt, err := redis.ParseURL(p.URL)
	if err != nil {
		return nil, nil, err
	}
	opt.ContextTimeoutEnabled = true
	client := redis.NewClient(opt)
	store, err := redisstore.New(client, redisstore.Config{Prefix: p.Space, OnLeaseExpiry: p.Policy})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return store, []func() error{store.Close, client.Close}, nil
}

// openRueidis opens Redis through a client whose callers share their connections.
func openRueidis(p plan) (lin.Store, []func() error, error) {
	opt, err := rueidis.ParseURL(p.URL)
	if err != nil {
		return nil, nil, err
	}
	opt.DisableCache = true
	client, err := rueidis.NewClient(opt)
	if err != nil {
		return nil, nil, err
	}
	end := func() error { client.Close(); return nil }
	store, err := rueidisadapter.New(client, redisstore.Config{Prefix: p.Space, OnLeaseExpiry: p.Policy})
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return store, []func() error{store.Close, end}, nil
}

// openTiered opens Redis with a memory before it. Nothing ends there but with the record's own time.
func openTiered(p plan) (lin.Store, []func() error, error) {
	remote, closers, err := openRedis(p)
	if err != nil {
		return nil, nil, err
	}
	local, err := idem.New(idem.Config{TTL: time.Minute})
	if err != nil {
		return nil, nil, err
	}
	return idem.Tiered(local, remote), append(closers, local.Close), nil
}

func openPostgres(p plan) (lin.Store, []func() error, error) {
	cfg, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return nil, nil, err
	}
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, nil, err
	}
	end := func() error { pool.Close(); return nil }
	store, err := pgstore.New(pool, pgstore.Config{Schema: p.Space, OnLeaseExpiry: p.Policy})
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return store, []func() error{store.Close, end}, nil
}

// openEngine opens what processes can not share.
func openEngine(p plan) (lin.Store, []func() error, error) {
	engine, err := idem.New(idem.Config{OnLeaseExpiry: p.Policy})
	if err != nil {
		return nil, nil, err
	}
	return engine, []func() error{engine.Close}, nil
}
