package rival

import (
	"strings"
	"time"

	"github.com/jellydator/ttlcache/v3"
)

var ttlCacheRival = Rival{Name: "ttlcache", Module: "github.com/jellydator/ttlcache/v3", Claim: "GetOrSet", Open: openTTLCache}

type ttlCache struct {
	c *ttlcache.Cache[string, []byte]
} // nil while in progress

func openTTLCache(Options) (Store, error) {
	c := ttlcache.New(ttlcache.WithDisableTouchOnHit[string, []byte](), ttlcache.WithTTL[string, []byte](lease))
	go c.Start()
	return ttlCache{c}, nil
}

func (s ttlCache) Begin(key string, buf []byte) (State, []byte, Claim) {
	if item := s.c.Get(key); item != nil {
		return answer(item.Value(), buf)
	}
	key = strings.Clone(key)
	if item, found := s.c.GetOrSet(key, nil); found {
		return answer(item.Value(), buf)
	}
	return Fresh, buf, Claim{Key: key}
}

func (s ttlCache) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.c.Set(c.Key, clone(body), ttl)
}

func (s ttlCache) Close() { s.c.Stop() }
