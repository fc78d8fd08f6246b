package load

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// An operation runs once and tells whether a live record was lost.
type operation func() (lost bool, err error)

// batch is how many operations run between two looks at the clock.
const batch = 32

// Block runs a workload with so many goroutines for about d, after a fifth of that as a warm-up, as the caches
// belong to whoever ran before.
func (s *Session) Block(workload string, goroutines int, d time.Duration) (Values, error) {
	worker, warm := s.worker(workload), d/5
	if worker == nil {
		return nil, fmt.Errorf("%w %q", errUnknown, workload)
	}
	if workload == "fresh" {
		warm = short * 6 / 5 // until records expire as fast as they come
	}
	if _, err := run(goroutines, warm, worker); err != nil {
		return nil, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	sum, err := run(goroutines, d, worker)
	runtime.ReadMemStats(&after)
	if err != nil {
		return nil, err
	}
	return Values{
		"ns/op":     float64(sum.took.Nanoseconds()) / float64(sum.ops),
		"allocs/op": float64(after.Mallocs-before.Mallocs) / float64(sum.ops),
		"lost/op":   float64(sum.lost) / float64(sum.ops),
	}, nil
}

// worker returns what makes a goroutine's operation; the number is the goroutine's.
func (s *Session) worker(workload string) func(number uint64) operation {
	switch workload {
	case "replay":
		return s.uniform
	case "hot":
		return s.hot
	case "zipf":
		s.drawZipf()
		return s.zipfMix
	case "fresh":
		return s.churn
	default:
		return nil
	}
}

// uniform replays any of the live keys.
func (s *Session) uniform(number uint64) operation {
	var k rival.Key
	buf, rnd := make([]byte, 0, 1024), rand.New(rand.NewPCG(number, rand.Uint64()))
	return func() (bool, error) { return s.replay(&k, rnd.Uint64N(uint64(s.live)), buf) }
}

// hot replays one key.
func (s *Session) hot(uint64) operation {
	var k rival.Key
	buf := make([]byte, 0, 1024)
	key := k.At(0) // made once: to make it takes as long as some need to answer
	return func() (bool, error) { return s.replayKey(key, buf) }
}

// zipfMix is nine replays, Zipf-distributed over the live keys, to one fresh cycle.
func (s *Session) zipfMix(number uint64) operation {
	var k rival.Key
	buf, at, n := make([]byte, 0, 1024), rand.IntN(len(s.zipf)), number
	return func() (bool, error) {
		if n++; n%10 == 0 {
			return false, s.cycle(k.At(zipfKeys+s.fresh.Add(1)), s.ttl)
		}
		at = (at + 1) % len(s.zipf)
		return s.replay(&k, uint64(s.zipf[at]), buf)
	}
}

// drawZipf makes a long row of draws: to draw costs more than what is to be measured.
func (s *Session) drawZipf() {
	if s.zipf != nil {
		return
	}
	z := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.01, 1, uint64(s.live-1))
	s.zipf = make([]uint32, 1<<18)
	for i := range s.zipf {
		s.zipf[i] = uint32(mixed(z.Uint64(), uint64(s.live)))
	}
}

// mixed spreads the popular keys over all: filled one after the other, they would lie side by side.
func mixed(i, n uint64) uint64 { return i * 2654435761 % n }

// churn completes fresh keys, while those of a second before expire.
func (s *Session) churn(uint64) operation {
	var k rival.Key
	var next, end uint64
	return func() (bool, error) {
		if next == end { // goroutines take numbers by the batch
			end = s.fresh.Add(batch)
			next = end - batch
		}
		i := next
		next++
		if s.rival.Expiry == rival.Never {
			i %= ring
		}
		return false, s.cycle(k.At(churnKeys+i), s.ttl)
	}
}

// A total is what the goroutines of a block did together.
type total struct {
	ops, lost int
	took      time.Duration
}

// run has so many goroutines run their operations for about d.
func run(goroutines int, d time.Duration, worker func(number uint64) operation) (total, error) {
	parts, errs := make([]total, goroutines), make([]error, goroutines)
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() { parts[g], errs[g] = repeat(start, d, worker(uint64(g))) })
	}
	wg.Wait()
	sum := total{took: time.Since(start)}
	for _, p := range parts {
		sum.ops += p.ops
		sum.lost += p.lost
	}
	return sum, errors.Join(errs...)
}

func repeat(start time.Time, d time.Duration, op operation) (sum total, err error) {
	for {
		for range batch {
			lost, err := op()
			if err != nil {
				return sum, err
			}
			if lost {
				sum.lost++
			}
		}
		sum.ops += batch
		if time.Since(start) >= d {
			return sum, nil
		}
	}
}
