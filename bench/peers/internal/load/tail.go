package load

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// Percentiles are those that a tail is told by.
var Percentiles = []float64{
	0, 10, 25, 50, 75, 90, 95, 97.5, 99, 99.5, 99.75, 99.9, 99.95, 99.975, 99.99, 99.995, 99.9975, 99.999, 99.9995, 100,
}

// PercentileName is the name of a percentile's value, of which the unit is ns.
func PercentileName(p float64) string { return "p" + strconv.FormatFloat(p, 'f', -1, 64) }

// maxSamples bounds a probe: four million replays.
const maxSamples = 4_000_000

// collectEvery is how far apart collections begin, unless one takes longer. How often the collector runs depends on what
// a program allocates, hardly on its store.
const collectEvery = 100 * time.Millisecond

// TailUnderGC probes with replays for d, while the collector runs again and again.
func (s *Session) TailUnderGC(d time.Duration) (Values, error) {
	s.touchSamples()
	done, ended := make(chan struct{}), make(chan int)
	go func() {
		ticker, n := time.NewTicker(collectEvery), 0
		defer ticker.Stop()
		for {
			runtime.GC()
			n++
			select {
			case <-done:
				ended <- n
				return
			case <-ticker.C:
			}
		}
	}()
	err := s.probe(d)
	close(done)
	n := <-ended
	if err != nil {
		return nil, err
	}
	v := s.tail()
	v["collections"] = float64(n)
	return v, nil
}

// TailUnderExpiry completes so many keys of which each ends its time at another moment of one second, and probes
// with replays of others in that second.
func (s *Session) TailUnderExpiry(gone int, perKey time.Duration) (Values, error) {
	s.touchSamples()
	var k rival.Key
	end := time.Now().Add(time.Second + 2*time.Duration(gone)*perKey)
	first := s.fresh.Add(uint64(gone)) - uint64(gone)
	for i := range gone {
		ttl := time.Until(end) + time.Duration(i)*time.Second/time.Duration(gone)
		if ttl <= 0 {
			return nil, fmt.Errorf("%s: still filling when the first record should expire", s.rival.Name)
		}
		if err := s.cycle(k.At(goneKeys+first+uint64(i)), ttl); err != nil {
			return nil, err
		}
	}
	debug.FreeOSMemory() // what filling left behind is not to be swept while probing
	time.Sleep(time.Until(end))
	if err := s.probe(time.Second); err != nil {
		return nil, err
	}
	return s.tail(), nil
}

// touchSamples makes room for the samples, and touches it: a page that is new would cost as much as a hundred
// samples, in the middle of the measurement.
func (s *Session) touchSamples() {
	if s.took == nil {
		s.took = slices.Repeat([]uint32{1}, maxSamples)
	}
	s.took = s.took[:0]
}

// probe times replays one by one.
func (s *Session) probe(d time.Duration) error {
	var k rival.Key
	buf, rnd := make([]byte, 0, 1024), rand.New(rand.NewPCG(rand.Uint64(), 1))
	start := time.Now()
	for last := start; last.Sub(start) < d && len(s.took) < cap(s.took); {
		if _, err := s.replay(&k, rnd.Uint64N(uint64(s.live)), buf); err != nil {
			return err
		}
		t := time.Now()
		s.took = append(s.took, uint32(min(t.Sub(last), 1<<32-1)))
		last = t
	}
	return nil
}

func (s *Session) tail() Values {
	slices.Sort(s.took)
	v := Values{"samples": float64(len(s.took))}
	for _, p := range Percentiles {
		at := min(int(p/100*float64(len(s.took))), len(s.took)-1)
		v[PercentileName(p)] = float64(s.took[at])
	}
	return v
}
