package rival

import (
	"strings"
	"time"

	"github.com/maypok86/otter/v2"
)

var otterRival = Rival{Name: "otter", Module: "github.com/maypok86/otter/v2", Claim: "SetIfAbsent", Open: openOtter}

type otterStore struct {
	c *otter.Cache[string, otterValue]
}

type otterValue struct {
	body []byte // nil while in progress
	ttl  time.Duration
}

func openOtter(Options) (Store, error) {
	c, err := otter.New(&otter.Options[string, otterValue]{
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[string, otterValue]) time.Duration { return e.Value.ttl }),
	})
	return otterStore{c}, err
}

func (s otterStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	if v, ok := s.c.GetIfPresent(key); ok {
		return answer(v.body, buf)
	}
	key = strings.Clone(key)
	if v, set := s.c.SetIfAbsent(key, otterValue{ttl: lease}); !set {
		return answer(v.body, buf)
	}
	return Fresh, buf, Claim{Key: key}
}

func (s otterStore) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.c.Set(c.Key, otterValue{clone(body), ttl})
}

func (s otterStore) Close() { s.c.StopAllGoroutines() }
