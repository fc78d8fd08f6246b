package rival

import (
	"strings"
	"time"

	"github.com/hashicorp/golang-lru/v2/expirable"
)

var lruRival = Rival{
	Name: "golang-lru", Module: "github.com/hashicorp/golang-lru/v2",
	Claim: "256 mutexes around it: it has nothing atomic", Expiry: PerStore,
	Open: func(o Options) (Store, error) {
		const unlimited = 0 // it would evict live records otherwise
		return lruStore{expirable.NewLRU[string, []byte](unlimited, nil, o.TTL), newStripes()}, nil
	},
}

type lruStore struct {
	c     *expirable.LRU[string, []byte] // nil while in progress
	locks *stripes
}

func (s lruStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	if body, ok := s.c.Get(key); ok {
		return answer(body, buf)
	}
	lock := s.locks.of(key)
	lock.Lock()
	defer lock.Unlock()
	if body, ok := s.c.Get(key); ok {
		return answer(body, buf)
	}
	key = strings.Clone(key)
	s.c.Add(key, nil)
	return Fresh, buf, Claim{Key: key}
}

func (s lruStore) Complete(_ string, c Claim, body []byte, _ time.Duration) {
	s.c.Add(c.Key, clone(body))
}

// Close has nothing to call: the package has no way to end its goroutine.
func (s lruStore) Close() {}
