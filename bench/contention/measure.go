package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

const (
	records = 100_000 // too many to stay in a processor's own cache, so that the lock is held for as long as it usually is
	rounds  = 5
	each    = 200 * time.Millisecond
)

// measure returns how far apart replays of random keys end, in ns, the median of some rounds. No shards are the default.
func measure(shards, processors, goroutines int) (float64, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
	engine, err := idem.New(idem.Config{Shards: shards})
	if err != nil {
		return 0, err
	}
	defer func() { _ = engine.Close() }() // its error is nil
	keys := make([]string, records)
	body := make([]byte, 200)
	ctx := context.Background()
	for i := range keys {
		keys[i] = fmt.Sprintf("%036d", i)
		out, err := engine.Begin(ctx, idem.Request{Key: keys[i]})
		if err != nil {
			return 0, err
		}
		if err := engine.Complete(ctx, out.Claim, idem.Response{Body: body}); err != nil {
			return 0, err
		}
	}
	all := make([]float64, rounds)
	for i := range all {
		all[i] = round(engine, keys, goroutines)
	}
	slices.Sort(all)
	return all[rounds/2], nil
}

// round lets the goroutines replay for a while.
func round(engine *idem.Engine, keys []string, goroutines int) float64 {
	var done sync.WaitGroup
	counts := make([]int, goroutines)
	begun := time.Now()
	for g := range goroutines {
		done.Go(func() {
			rnd, buf, n := rand.New(rand.NewPCG(uint64(g), 1)), make([]byte, 0, 256), 0
			for ; n%64 != 0 || time.Since(begun) < each; n++ {
				req := idem.Request{Key: keys[rnd.IntN(len(keys))], Buf: buf}
				if out, err := engine.Begin(context.Background(), req); err != nil || out.State != idem.Replay {
					panic(fmt.Sprintf("contention: %v, %v", out.State, err)) // the records live for a day
				}
			}
			counts[g] = n
		})
	}
	done.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(time.Since(begun)) / float64(total)
}
