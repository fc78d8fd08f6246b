package rival

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/session"
)

var fiberRival = Rival{
	Name: "fiber", Module: "github.com/gofiber/fiber/v3", Claim: "its lock on the key, as its middleware does",
	Blocks: true, Open: openFiber,
}

// fiberStore does what the idempotency middleware of fiber does around a handler, with the same storage and lock,
// but without HTTP: look, lock, look again, run, store, unlock.
type fiberStore struct {
	storage fiber.Storage
	lock    *idempotency.MemoryLock
	waiting atomic.Int64
}

// openFiber takes the storage from the session middleware, which makes the same by default and shows it.
func openFiber(Options) (Store, error) {
	return &fiberStore{storage: session.NewStore().Storage, lock: idempotency.NewMemoryLock()}, nil
}

func (s *fiberStore) get(key string) []byte {
	body, err := s.storage.Get(key)
	must(err)
	return body
}

func (s *fiberStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	if body := s.get(key); body != nil {
		return answer(body, buf)
	}
	key = strings.Clone(key)
	must(s.lock.Lock(key))
	if body := s.get(key); body != nil {
		must(s.lock.Unlock(key))
		return answer(body, buf)
	}
	return Fresh, buf, Claim{Key: key}
}

// Complete adds another second, since the storage's clock is a ticker's, which cuts the time to seconds: near the turn of one it
// may stand still for two and then go on by both.
func (s *fiberStore) Complete(_ string, c Claim, body []byte, ttl time.Duration) {
	must(s.storage.Set(c.Key, body, time.Duration(seconds(ttl)+1)*time.Second))
	must(s.lock.Unlock(c.Key))
}

func (s *fiberStore) Wait(key string, buf []byte) []byte {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	_, body, _ := s.Begin(key, buf)
	return body
}

func (s *fiberStore) Waiting() int { return int(s.waiting.Load()) }
func (s *fiberStore) Close()       { must(s.storage.Close()) }

// must is for errors that the storage in memory does not have.
func must(err error) {
	if err != nil {
		panic(errors.Join(errors.New("fiber"), err))
	}
}
