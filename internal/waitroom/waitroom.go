// Package waitroom lets the callers of one process that wait for the same key share one look at the store.
// Ten thousand duplicates then cost the store no more than one does: the first in line looks, the others sleep.
package waitroom

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/heed"
)

var (
	// ErrCrowded: as many callers wait as may; from Wait, at once. Answer without waiting.
	ErrCrowded = errors.New("waitroom: too many callers wait")

	// ErrClosed: the room was closed; from Wait, also to those who wait already.
	ErrClosed = errors.New("waitroom: closed")
)

// A Key is what callers wait for. Callers with different fingerprints get different answers, and so do not wait
// together.
type Key struct {
	Scope, Key  string
	Fingerprint [16]byte
}

// A Verdict says whom a look's answer is for.
type Verdict int

const (
	// Again: the key is still in progress. Look again after Look.After at the latest, or on a hint.
	Again Verdict = iota

	// Mine: the answer is for the caller that looked. The next in line looks at once.
	Mine

	// Everyones: the answer is the same for all who waited for this Key when the look began.
	Everyones
)

// A Look is what one look at the store found.
type Look[R any] struct {
	// Result and Err are what Wait returns, unless the verdict is Again. A Result for everyone is shared: who
	// changes it copies it first. An Err that came while the looker's context was done is the looker's alone.
	Result R
	Err    error

	Verdict Verdict

	// After is when to look again, with the verdict Again: what is left of the owner's lease. Zero or less
	// means that it is not known.
	After time.Duration
}

// Config configures a [Room]. The zero Config works.
type Config struct {
	// MaxWaiters bounds the callers in the room. Zero means 65536.
	MaxWaiters int

	// MaxWaitersPerKey bounds those with one scope and key. Zero means 1024. Many thousands that all have another
	// fingerprint take long to tell apart.
	MaxWaitersPerKey int

	// Fallback returns how long to sleep when no hint comes, after attempt+1 looks in a row with the verdict
	// Again, the last of which said after. Nil means after and up to 20 ms more, but at most 1 s at first, which
	// doubles up to 5 s: hints may be lost.
	Fallback func(attempt int, after time.Duration) time.Duration
}

// respite is how long the next look is put off after one that ended with its looker's context, and so says nothing
// about the key. Callers are often equally patient and came one after the other: each would begin a look, only to
// leave in its turn.
const respite = 20 * time.Millisecond

// A Room is where callers wait. It must be made by [New]. All methods may be called by any number of
// goroutines; the room has none of its own.
//
// Nobody is forgotten, because the following holds whenever mu is free:
//
//   - The first of every line looks at the store, or is about to, or sleeps until due; or a turn lies in its
//     channel. Whatever takes the first out of a line gives the next one the turn in the same hold of mu.
//   - A hint sets hinted on its line, and only the beginning of a look clears it. The first does not sleep while it is
//     set, and is woken if it sleeps already. So for every hint there is a look that began after it.
//   - A caller is in line before it looks. So what happens after its look is seen by the next one, or hinted at.
type Room[R any] struct {
	cfg    Config
	closed chan struct{} // closed under mu

	mu      sync.Mutex
	lines   map[name]*line[R]
	waiting int
}

// New returns an empty room. Negative bounds let nobody in.
func New[R any](cfg Config) *Room[R] {
	if cfg.MaxWaiters == 0 {
		cfg.MaxWaiters = 1 << 16
	}
	if cfg.MaxWaitersPerKey == 0 {
		cfg.MaxWaitersPerKey = 1 << 10
	}
	if cfg.Fallback == nil {
		cfg.Fallback = fallback
	}
	return &Room[R]{cfg: cfg, closed: make(chan struct{}), lines: make(map[name]*line[R])}
}

// fallback is the default of Config.Fallback.
func fallback(attempt int, after time.Duration) time.Duration {
	longest := min(time.Second<<min(attempt, 3), 5*time.Second)
	if after <= 0 {
		return longest
	}
	// Processes that wait for the same lease to end must not all look in the same instant. A look just before
	// the end would be one too many.
	return min(min(after, longest)+time.Millisecond+rand.N(20*time.Millisecond), longest)
}

// Wait joins the line for k. The first in line calls look, with its own ctx and the number of looks in a row that
// were told Again, until the verdict is another one; the others sleep until they are answered or first.
//
// An answer for everyone goes to those who came before the look began. It could be out of date for who comes
// later: a caller that has completed a key and asks for it must not be told what was true before that.
//
// Wait returns [context.Cause] when ctx ends, ErrCrowded at once when the room or the line is full, and ErrClosed. A
// look that runs is not interrupted but by ctx.
func (r *Room[R]) Wait(ctx context.Context, k Key, look func(ctx context.Context, attempt int) Look[R]) (R, error) {
	w, first, err := r.join(k)
	if err != nil {
		var none R
		return none, err
	}
	// Also when look panics: somebody has to go on looking.
	defer r.leave(w)
	if !first {
		answer, err := r.sleep(ctx, w, nil)
		if err != nil {
			var none R
			return none, err
		}
		if answer != nil {
			return answer.Result, answer.Err
		}
	}
	return r.lead(ctx, w, look)
}

// Hint says that something happened to a key: who waits for it, under whatever fingerprint, looks now.
func (r *Room[R]) Hint(scope, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l := r.lines[name{scope, key}]; l != nil; l = l.sibling {
		l.hint()
	}
}

// HintAll says that hints may have been lost, since a connection was: everybody looks.
func (r *Room[R]) HintAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.lines {
		for ; l != nil; l = l.sibling {
			l.hint()
		}
	}
}

// Close ends all waits, and those to come, with ErrClosed. Closing again does nothing.
func (r *Room[R]) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.isClosed() {
		close(r.closed)
	}
}

// Waiting returns how many callers are in Wait.
func (r *Room[R]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting
}

// join puts a caller at the end of the line for k.
func (r *Room[R]) join(k Key) (w *waiter[R], first bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed() {
		return nil, false, ErrClosed
	}
	l, n := r.find(k)
	if r.waiting >= r.cfg.MaxWaiters || n >= r.cfg.MaxWaitersPerKey {
		return nil, false, ErrCrowded
	}
	if l == nil {
		l = r.open(k)
	}
	r.waiting++
	return l.push(), l.n == 1, nil
}

// lead looks for all who are in line, until the answer is for w too.
func (r *Room[R]) lead(ctx context.Context, w *waiter[R], look func(ctx context.Context, attempt int) Look[R]) (R, error) {
	for {
		attempt, err := r.begin(ctx, w)
		if err != nil {
			var none R
			return none, err
		}
		found := look(ctx, attempt)
		if found.Err != nil && heed.IsOver(ctx) {
			found.Verdict = Mine
			r.postpone(w.line, respite, attempt)
		}
		switch found.Verdict {
		case Again:
			r.postpone(w.line, r.cfg.Fallback(attempt, found.After), attempt+1)
		case Everyones:
			r.serve(w.line, &found)
			fallthrough
		default:
			return found.Result, found.Err
		}
	}
}

// begin waits until it is time for a look, and begins it.
func (r *Room[R]) begin(ctx context.Context, w *waiter[R]) (attempt int, err error) {
	for {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		attempt, pause := r.tryBegin(w)
		if pause <= 0 {
			return attempt, nil
		}
		timer := time.NewTimer(pause)
		_, err := r.sleep(ctx, w, timer.C)
		timer.Stop()
		if err != nil {
			return 0, err
		}
	}
}

// tryBegin begins a look, or tells how long it is until the next one.
func (r *Room[R]) tryBegin(w *waiter[R]) (attempt int, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := w.line
	if !l.hinted && !l.due.IsZero() {
		if pause := time.Until(l.due); pause > 0 {
			w.expectTurn()
			return 0, pause
		}
	}
	l.begin()
	return l.attempt, 0
}

// sleep waits for a turn, or until timer fires. The answer is nil when w is first.
func (r *Room[R]) sleep(ctx context.Context, w *waiter[R], timer <-chan time.Time) (answer *Look[R], err error) {
	select {
	case answer = <-w.turn:
		return answer, nil
	case <-timer:
		return nil, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.closed:
		return nil, ErrClosed
	}
}

// postpone sets when the next look is due. A caller that leaves before then leaves that to the next in line.
func (r *Room[R]) postpone(l *line[R], pause time.Duration, attempt int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.due, l.attempt = time.Now().Add(pause), attempt
}

// serve gives an answer to all who came before the look began, the first in line among them.
func (r *Room[R]) serve(l *line[R], answer *Look[R]) {
	r.mu.Lock()
	first, n := l.takeEarly()
	r.waiting -= n
	r.passOn(l)
	r.mu.Unlock()
	// There may be thousands, so they are woken when mu is free. Nobody else touches them any more.
	for w := first.next; w != nil; {
		next := w.next
		w.turn <- answer
		w = next
	}
}

// leave takes a caller out of its line, unless it was served.
func (r *Room[R]) leave(w *waiter[R]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := w.line
	if w.since < l.served {
		return
	}
	first := l.first == w
	l.remove(w)
	r.waiting--
	if first {
		r.passOn(l)
	}
}

// passOn gives the turn to who is first now, and ends a line that is empty.
func (r *Room[R]) passOn(l *line[R]) {
	if l.first == nil {
		r.end(l)
		return
	}
	if l.due.IsZero() {
		l.attempt = 0
	}
	l.first.wake()
}

func (r *Room[R]) isClosed() bool {
	select {
	case <-r.closed:
		return true
	default:
		return false
	}
}

// find returns the line for k, or nil, and how many wait for its scope and key, under whatever fingerprint.
func (r *Room[R]) find(k Key) (found *line[R], n int) {
	for l := r.lines[name{k.Scope, k.Key}]; l != nil; l = l.sibling {
		if l.fingerprint == k.Fingerprint {
			found = l
		}
		n += l.n
	}
	return found, n
}

// open makes the line for k. The strings are copied since the line may be there for longer than the caller
// whose they are.
func (r *Room[R]) open(k Key) *line[R] {
	l := &line[R]{name: name{strings.Clone(k.Scope), strings.Clone(k.Key)}, fingerprint: k.Fingerprint}
	l.sibling = r.lines[l.name]
	r.lines[l.name] = l
	return l
}

// end removes a line from the room.
func (r *Room[R]) end(l *line[R]) {
	head := r.lines[l.name]
	switch {
	case head != l:
		for head.sibling != l {
			head = head.sibling
		}
		head.sibling = l.sibling
	case l.sibling == nil:
		delete(r.lines, l.name)
	default:
		r.lines[l.sibling.name] = l.sibling
	}
}
