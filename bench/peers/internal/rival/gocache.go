package rival

import (
	"runtime"
	"strings"
	"time"

	"github.com/patrickmn/go-cache"
)

var goCacheRival = Rival{Name: "go-cache", Module: "github.com/patrickmn/go-cache", Claim: "Add", Open: openGoCache}

type goCache struct{ c *cache.Cache }

// inProgress is the value of claimed keys: boxed once.
var inProgress any = []byte(nil)

// openGoCache has the whole cache scanned under its lock as often as records expire, but at most every ten
// minutes, the interval in go-cache's own example.
func openGoCache(o Options) (Store, error) {
	return goCache{cache.New(lease, min(o.TTL, 10*time.Minute))}, nil
}

func (s goCache) Begin(key string, buf []byte) (State, []byte, Claim) {
	if v, ok := s.c.Get(key); ok {
		return answer(v.([]byte), buf)
	}
	key = strings.Clone(key)
	if s.c.Add(key, inProgress, lease) == nil {
		return Fresh, buf, Claim{Key: key}
	}
	v, _ := s.c.Get(key)
	body, _ := v.([]byte)
	return answer(body, buf)
}

func (s goCache) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.c.Set(c.Key, clone(body), ttl)
}

// Close leaves the end of the janitor to go-cache's finalizer, the only way there is.
func (s goCache) Close() { runtime.KeepAlive(s.c) }
