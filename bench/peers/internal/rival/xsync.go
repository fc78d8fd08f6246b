package rival

import (
	"strings"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
)

var xsyncRival = Rival{
	Name: "xsync", Module: "github.com/puzpuzpuz/xsync/v4", Claim: "LoadOrStore, Compute", Expiry: Never,
	Open: func(Options) (Store, error) { return xsyncStore{xsync.NewMap[string, entry]()}, nil },
}

type xsyncStore struct{ m *xsync.Map[string, entry] }

func (s xsyncStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	t := now()
	if e, ok := s.m.Load(key); ok && e.live(t) {
		return answer(e.body, buf)
	}
	key = strings.Clone(key)
	claim := entry{deadline: t + int64(lease)}
	e, loaded := s.m.LoadOrStore(key, claim)
	if !loaded {
		return Fresh, buf, Claim{Key: key}
	}
	if e.live(t) {
		return answer(e.body, buf)
	}
	return s.takeOver(key, buf, t, claim)
}

// takeOver claims a key whose record is over, unless somebody else did so first.
func (s xsyncStore) takeOver(key string, buf []byte, t int64, claim entry) (State, []byte, Claim) {
	fresh := false
	e, _ := s.m.Compute(key, func(old entry, loaded bool) (entry, xsync.ComputeOp) {
		if fresh = !loaded || !old.live(t); fresh {
			return claim, xsync.UpdateOp
		}
		return old, xsync.CancelOp
	})
	if fresh {
		return Fresh, buf, Claim{Key: key}
	}
	return answer(e.body, buf)
}

func (s xsyncStore) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.m.Store(c.Key, entry{clone(body), now() + int64(ttl)})
}

func (s xsyncStore) Close() {}
