package rival

import (
	"strings"
	"sync"
	"time"

	"github.com/dgraph-io/ristretto/v2"
)

var ristrettoRival = Rival{
	Name: "ristretto", Module: "github.com/dgraph-io/ristretto/v2",
	Claim: "claims in 256 locked maps beside it, Wait after each Set: it stores later, or not at all", Lossy: true,
	Open: openRistretto,
}

// ristrettoStore keeps only responses in ristretto: what is set there can be seen some time later at the earliest,
// so a claim would not be atomic. The claim is dropped when Wait says that the response can be seen.
type ristrettoStore struct {
	c     *ristretto.Cache[string, []byte]
	locks *stripes

	claims [256]struct {
		sync.Mutex
		deadlines map[string]int64
	}
}

func openRistretto(o Options) (Store, error) {
	c, err := ristretto.NewCache(&ristretto.Config[string, []byte]{
		NumCounters:        int64(10 * o.Records), // as its documentation advises
		MaxCost:            int64(2*o.Records + 1000),
		BufferItems:        64,
		IgnoreInternalCost: true, // a cost of one for each record
	})
	s := &ristrettoStore{c: c, locks: newStripes()}
	for i := range s.claims {
		s.claims[i].deadlines = map[string]int64{}
	}
	return s, err
}

func (s *ristrettoStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	if body, ok := s.c.Get(key); ok {
		return answer(body, buf)
	}
	claims := &s.claims[s.locks.number(key)]
	claims.Lock()
	defer claims.Unlock()
	t := now()
	if t < claims.deadlines[key] {
		return InProgress, buf, Claim{}
	}
	if body, ok := s.c.Get(key); ok { // it was completed between the two looks
		return answer(body, buf)
	}
	key = strings.Clone(key)
	claims.deadlines[key] = t + int64(lease)
	return Fresh, buf, Claim{Key: key}
}

func (s *ristrettoStore) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	for body = clone(body); !s.c.SetWithTTL(c.Key, body, 1, ttl); { // refused when its buffer is full
		s.c.Wait()
	}
	s.c.Wait()
	claims := &s.claims[s.locks.number(c.Key)]
	claims.Lock()
	delete(claims.deadlines, c.Key)
	claims.Unlock()
}

func (s *ristrettoStore) Close() { s.c.Close() }
