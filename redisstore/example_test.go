package redisstore_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// Two processes that are given the same order; the stores stand for them.
func Example() {
	opt, err := redis.ParseURL(redisURL) // of a server that the tests start
	if err != nil {
		fmt.Println(err)
		return
	}
	opt.ContextTimeoutEnabled = true
	client := redis.NewClient(opt)
	defer func() { _ = client.Close() }()

	cfg := redisstore.Config{Prefix: prefix()}
	for _, process := range []string{"first", "second"} {
		store, err := redisstore.New(client, cfg)
		if err != nil {
			fmt.Println(err)
			return
		}
		req := idem.Request{Scope: "acme", Key: "order-1", Fingerprint: idem.FingerprintOf([]byte(`{"amount":100}`)), Wait: true}
		resp, err := idem.Do(context.Background(), store, req, func(context.Context, idem.Claim) (idem.Response, error) {
			fmt.Println(process, "process charges the card")
			return idem.Response{Status: 201, Body: []byte("charged")}, nil
		})
		fmt.Println(process, "process answers:", resp.Status, string(resp.Body), err)
		_ = store.Close()
	}
	// Output:
	// first process charges the card
	// first process answers: 201 charged <nil>
	// second process answers: 201 charged <nil>
}
