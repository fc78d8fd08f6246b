package rival_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
	"github.com/stretchr/testify/require"
)

func TestEveryRivalAnswersRightly(t *testing.T) {
	t.Parallel()
	results := checkAll(rival.All())
	for i, r := range rival.All() {
		t.Run(r.Name, func(t *testing.T) { require.NoError(t, results[i]) })
	}
}

// checkAll checks all at once, as checks mostly wait for records to expire.
func checkAll(rivals []rival.Rival) []error {
	results := make([]error, len(rivals))
	var wg sync.WaitGroup
	for i, r := range rivals {
		wg.Go(func() { results[i] = rival.Check(r) })
	}
	wg.Wait()
	return results
}

// broken is a store with one fault, for the check to find.
type broken struct {
	mu        sync.Mutex
	bodies    map[string][]byte
	deadlines map[string]time.Time
	fault     string
}

func (b *broken) Begin(key string, buf []byte) (rival.State, []byte, rival.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	body, found := b.bodies[key]
	expired := found && body != nil && time.Now().After(b.deadlines[key])
	switch {
	case !found || expired && b.fault != "never expires":
		if b.fault != "claims twice" {
			b.bodies[strings.Clone(key)] = nil
		}
		return rival.Fresh, buf, rival.Claim{}
	case body == nil:
		return rival.InProgress, buf, rival.Claim{}
	case b.fault == "does not use the buffer":
		return rival.Replay, append([]byte(nil), body...), rival.Claim{}
	default:
		return rival.Replay, append(buf[:0], body...), rival.Claim{}
	}
}

func (b *broken) Complete(key string, _ rival.Claim, body []byte, ttl time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.fault {
	case "keeps the caller's key":
		delete(b.bodies, key)
	case "expires early":
		ttl /= 2
	default:
		key = strings.Clone(key)
	}
	if b.fault != "keeps the caller's body" {
		body = append([]byte(nil), body...)
	}
	b.bodies[key], b.deadlines[key] = body, time.Now().Add(ttl)
}

func (b *broken) Close() {}

func TestCheckFindsAFault(t *testing.T) {
	t.Parallel()
	faults := []string{
		"", "claims twice", "keeps the caller's key", "keeps the caller's body", "does not use the buffer",
		"expires early", "never expires",
	}
	var rivals []rival.Rival
	for _, fault := range faults {
		rivals = append(rivals, rival.Rival{Name: "broken", Open: func(rival.Options) (rival.Store, error) {
			return &broken{bodies: map[string][]byte{}, deadlines: map[string]time.Time{}, fault: fault}, nil
		}})
	}
	for i, err := range checkAll(rivals) {
		t.Run("store that "+faults[i], func(t *testing.T) {
			if faults[i] == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "broken: ")
		})
	}
}

func TestSelect(t *testing.T) {
	t.Run("nothing is everybody", func(t *testing.T) {
		got, err := rival.Select("")
		require.NoError(t, err)
		require.Len(t, got, len(rival.All()))
	})
	t.Run("idem is always first", func(t *testing.T) {
		got, err := rival.Select("otter, mutex+map")
		require.NoError(t, err)
		var names []string
		for _, r := range got {
			names = append(names, r.Name)
		}
		require.Equal(t, []string{"idem", "mutex+map", "otter"}, names)
	})
	t.Run("an unknown name is told, and the known ones", func(t *testing.T) {
		_, err := rival.Select("idem,oter")
		require.ErrorContains(t, err, `unknown rival "oter"`)
		require.ErrorContains(t, err, "otter")
	})
}
