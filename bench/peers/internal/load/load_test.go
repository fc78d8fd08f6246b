package load_test

import (
	"sync"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"github.com/stretchr/testify/require"
)

const (
	live  = 500
	block = 2 * time.Millisecond
)

func open(t *testing.T, r rival.Rival, records int, churn bool) *load.Session {
	s, err := load.Open(r, records, churn)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestEveryRivalDoesTheWork(t *testing.T) {
	t.Parallel()
	for _, r := range rival.All() {
		t.Run(r.Name, func(t *testing.T) {
			s := open(t, r, 100*live, false)
			require.NoError(t, s.Fill(live))
			v := s.Settle()
			require.Positive(t, v["gc cpu-ms"])
			require.Contains(t, v, "resident B/record")
			for _, workload := range []string{"replay", "hot", "zipf"} {
				v, err := s.Block(workload, 2, block)
				require.NoError(t, err)
				require.Positive(t, v["ns/op"])
				require.Zero(t, v["lost/op"], "there is room for all")
			}
		})
	}
}

func TestDuplicatesWait(t *testing.T) {
	for _, name := range []string{"idem", "mutex+map", "fiber"} {
		t.Run(name, func(t *testing.T) {
			s := open(t, byName(t, name), live, false)
			v, err := s.Wait(4, block)
			require.NoError(t, err)
			require.Positive(t, v["wake-ns"])
		})
	}
	_, err := open(t, byName(t, "xsync"), live, false).Wait(4, block)
	require.ErrorContains(t, err, "with xsync duplicates cannot wait")
}

func byName(t *testing.T, name string) rival.Rival {
	for _, r := range rival.All() {
		if r.Name == name {
			return r
		}
	}
	require.Fail(t, "no such rival", name)
	return rival.Rival{}
}

func TestTailRises(t *testing.T) {
	s := open(t, byName(t, "idem"), live, false)
	require.NoError(t, s.Fill(live))
	v, err := s.TailUnderGC(20 * time.Millisecond)
	require.NoError(t, err)
	require.Positive(t, v["collections"])
	requireRising(t, v)
}

func requireRising(t *testing.T, v load.Values) {
	require.Positive(t, v["samples"])
	last := 0.0
	for _, p := range load.Percentiles {
		require.GreaterOrEqual(t, v[load.PercentileName(p)], last)
		last = v[load.PercentileName(p)]
	}
	require.Positive(t, v["p100"])
}

// TestRecordsExpireMeanwhile takes seconds for each: they run at once.
func TestRecordsExpireMeanwhile(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for _, name := range []string{"idem", "mutex+map", "freecache"} {
		s := open(t, byName(t, name), 3_000_000, true)
		wg.Go(func() {
			v, err := s.Block("fresh", 2, 10*block)
			if err != nil || v["ns/op"] <= 0 {
				t.Errorf("%s: fresh cycle: %v, %v", name, v, err)
			}
		})
	}
	s := open(t, byName(t, "idem"), live, false)
	require.NoError(t, s.Fill(live))
	v, err := s.TailUnderExpiry(live, time.Microsecond)
	require.NoError(t, err)
	requireRising(t, v)
	wg.Wait()
}

// forgetful answers that every key is fresh.
type forgetful struct{ rival.Store }

func (forgetful) Begin(string, []byte) (rival.State, []byte, rival.Claim) {
	return rival.Fresh, nil, rival.Claim{}
}
func (forgetful) Complete(string, rival.Claim, []byte, time.Duration) {}
func (forgetful) Close()                                              {}

func TestWrongAnswersAreNotMeasured(t *testing.T) {
	r := rival.Rival{Name: "forgetful", Open: func(rival.Options) (rival.Store, error) { return forgetful{}, nil }}
	s := open(t, r, live, false)
	require.NoError(t, s.Fill(live))
	_, err := s.Block("replay", 2, block)
	require.ErrorContains(t, err, "forgetful: the replay of a live key is answered fresh")

	r.Lossy = true
	s = open(t, r, live, false)
	require.NoError(t, s.Fill(live))
	v, err := s.Block("replay", 2, block)
	require.NoError(t, err)
	require.InDelta(t, 1, v["lost/op"], 0, "what a rival that may lose records lost is counted")
}

func TestUnknownWorkload(t *testing.T) {
	_, err := open(t, byName(t, "idem"), live, false).Block("nap", 1, block)
	require.ErrorContains(t, err, `unknown workload "nap"`)
}
