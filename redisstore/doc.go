// Package redisstore keeps the contract of package idem on Redis 7 or Valkey (and on Redis 6.2, with one limit), so that
// duplicates that reach other machines are seen.
//
//	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
//	defer client.Close()
//	store, err := redisstore.New(client, redisstore.Config{})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	resp, err := idem.Do(ctx, store, req, charge)
//
// A record is one string, and each method is one script on it, so it takes one round trip and works on a cluster. (Forget
// and Resolve look at the record first, and then change that one and no other.) All times are the server's; clients send
// durations. What a server promises depends on how it is set up, on whether it
// writes an append-only file and has replicas above all: the README has the table.
//
// A caller that waits is woken by a message on a channel of its own process, which Complete sends only when somebody
// waits. Messages may be lost, so it also looks by itself: when the lease ends, after a second, later every five.
//
// This package speaks to servers through go-redis. Package rueidisadapter, a module of its own, does so through
// rueidis; any other library will do that can implement [Adapter].
package redisstore
