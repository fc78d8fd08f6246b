package rival

import (
	"strings"
	"time"

	"github.com/Yiling-J/theine-go"
)

var theineRival = Rival{
	Name: "theine", Module: "github.com/Yiling-J/theine-go", Claim: "256 mutexes around it: it has nothing atomic",
	Lossy: true, Open: openTheine,
}

type theineStore struct {
	c     *theine.Cache[string, []byte] // nil while in progress
	locks *stripes
}

// openTheine gives it twice the room, so that it need not evict.
func openTheine(o Options) (Store, error) {
	c, err := theine.NewBuilder[string, []byte](int64(2*o.Records + 1000)).Build()
	return theineStore{c, newStripes()}, err
}

func (s theineStore) Begin(key string, buf []byte) (State, []byte, Claim) {
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
	s.c.SetWithTTL(key, nil, 1, lease)
	return Fresh, buf, Claim{Key: key}
}

func (s theineStore) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.c.SetWithTTL(c.Key, clone(body), 1, ttl)
}

func (s theineStore) Close() { s.c.Close() }
