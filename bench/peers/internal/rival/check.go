package rival

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Check tells whether a rival answers rightly, before anything about it is measured: a claim, a duplicate in
// progress, the response byte for byte, exactly one claim among many callers at once, and absence after expiry.
func Check(r Rival) error {
	const short, long = time.Second, time.Minute
	for _, check := range []struct {
		name string
		ttl  time.Duration // of a store that knows one for all, also for claims: a slow machine must not outlast it
		run  func(Store, Rival) error
	}{
		{"one key after another", long, checkStates},
		{"many callers of one key", long, checkRace},
		{"waiting", long, checkWait},
		{"expiry", short, func(s Store, _ Rival) error { return checkExpiry(s, short) }},
	} {
		if err := checkOne(r, check.ttl, check.run); err != nil {
			return fmt.Errorf("%s: %s: %w", r.Name, check.name, err)
		}
	}
	return nil
}

// checkOne runs a check on a store of its own.
func checkOne(r Rival, ttl time.Duration, run func(Store, Rival) error) error {
	s, err := r.Open(Options{Records: 100_000, TTL: ttl})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	return run(s, r)
}

func response(key string) []byte {
	return append([]byte(key), bytes.Repeat([]byte{'.'}, BodyBytes-len(key))...)
}

// expect begins key and compares the answer.
func expect(s Store, key string, want State) (Claim, error) {
	buf := make([]byte, 0, 2*BodyBytes)
	state, body, claim := s.Begin(key, buf)
	if state != want {
		return claim, fmt.Errorf("begin of %q answers %v, not %v", key, state, want)
	}
	if want != Replay {
		return claim, nil
	}
	if !bytes.Equal(body, response(key)) {
		return claim, fmt.Errorf("replay of %q is %q", key, body)
	}
	if &body[0] != &buf[:1][0] {
		return claim, fmt.Errorf("replay of %q is not in the caller's buffer", key)
	}
	return claim, nil
}

// checkStates walks through keys that all lie in the same memory, as a server's would.
func checkStates(s Store, r Rival) error {
	const keys = 1000
	var errs []error
	var k Key
	for i := range uint64(keys) {
		claim, err := expect(s, k.At(i), Fresh)
		errs = append(errs, err)
		if !r.Blocks {
			_, err = expect(s, k.At(i), InProgress)
			errs = append(errs, err)
		}
		k.At(i + keys) // what the store keeps must not change with it
		body := response(k.At(i))
		s.Complete(k.At(i), claim, body, time.Minute)
		clear(body)
		_, err = expect(s, k.At(i), Replay)
		errs = append(errs, err)
	}
	for i := range uint64(keys) {
		if _, err := expect(s, k.At(i), Replay); err != nil && r.Expiry != PerStore {
			errs = append(errs, fmt.Errorf("after other keys: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkRace has callers walk along the same keys. The one ahead has the claims to make, so the others, who have
// not, are always about to overtake it: they meet all the time.
func checkRace(s Store, r Rival) error {
	const keys, callers = 4000, 4
	var fresh [keys]atomic.Int32
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			var k Key
			for i := range uint64(keys) {
				key := k.At(1<<32 + i)
				state, _, claim := s.Begin(key, nil)
				if state != Fresh {
					continue
				}
				if fresh[i].Add(1); r.Blocks {
					s.Complete(key, claim, response(key), time.Minute) // the others block until then
				}
			}
		})
	}
	wg.Wait()
	for i := range fresh {
		if n := fresh[i].Load(); n != 1 {
			return fmt.Errorf("%d of %d callers have the claim", n, callers)
		}
	}
	return nil
}

func checkWait(s Store, _ Rival) error {
	w, ok := s.(Waiter)
	if !ok {
		return nil
	}
	var k Key
	key := k.At(1 << 33)
	claim, err := expect(s, key, Fresh)
	if err != nil {
		return err
	}
	got := make(chan []byte)
	for range 2 {
		go func() { got <- w.Wait(key, nil) }()
	}
	for w.Waiting() < 2 {
		time.Sleep(time.Millisecond)
	}
	select {
	case body := <-got:
		return fmt.Errorf("a duplicate has %q before the owner completes", body)
	case <-time.After(5 * time.Millisecond):
	}
	s.Complete(key, claim, response(key), time.Minute)
	for range 2 {
		if body := <-got; !bytes.Equal(body, response(key)) {
			return fmt.Errorf("a duplicate that waited has %q", body)
		}
	}
	return nil
}

// checkExpiry completes a key with a short time to live, and waits until it is absent: not before its time, and
// at most the few seconds later that libraries which count in seconds may take.
func checkExpiry(s Store, ttl time.Duration) error {
	const late = 3 * time.Second
	var k Key
	key := k.At(1 << 34)
	claim, err := expect(s, key, Fresh)
	if err != nil {
		return err
	}
	begun := time.Now()
	s.Complete(key, claim, response(key), ttl)
	for {
		state, _, _ := s.Begin(key, nil)
		switch age := time.Since(begun); {
		case state == Fresh && age < ttl:
			return fmt.Errorf("absent after %v of %v", age, ttl)
		case state == Fresh:
			return nil
		case state != Replay:
			return fmt.Errorf("%v after %v of %v", state, age, ttl)
		case age > ttl+late:
			return fmt.Errorf("still replayed %v after its %v", age-ttl, ttl)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
