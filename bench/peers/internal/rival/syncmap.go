package rival

import (
	"strings"
	"sync"
	"time"
)

var syncMapRival = Rival{
	Name: "sync.Map", Claim: "LoadOrStore, CompareAndSwap", Expiry: Never,
	Open: func(Options) (Store, error) { return &syncMap{}, nil },
}

type syncMap struct{ m sync.Map } // of string and *entry

func (s *syncMap) Begin(key string, buf []byte) (State, []byte, Claim) {
	t := now()
	if v, ok := s.m.Load(key); ok {
		if e := v.(*entry); e.live(t) {
			return answer(e.body, buf)
		}
	}
	key = strings.Clone(key)
	claim := &entry{deadline: t + int64(lease)}
	for {
		v, loaded := s.m.LoadOrStore(key, claim)
		if !loaded {
			return Fresh, buf, Claim{Key: key}
		}
		if e := v.(*entry); e.live(t) {
			return answer(e.body, buf)
		}
		if s.m.CompareAndSwap(key, v, claim) {
			return Fresh, buf, Claim{Key: key}
		}
	}
}

func (s *syncMap) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	s.m.Store(c.Key, &entry{clone(body), now() + int64(ttl)})
}

func (s *syncMap) Close() {}
