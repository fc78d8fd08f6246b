package pgstore

import "sync/atomic"

// A forecast tells whether the key of the next Begin is likely to be new, by those that came before. Most services see new
// keys and few retries, for which it is best to insert first; in a burst of retries it is best to look first. To
// guess wrong costs a round trip, and nothing else. The zero forecast is that it is new.
type forecast struct {
	known atomic.Int64 // how many of the keys were known lately, in 1/certain
}

const (
	certain = 1 << 16

	// tooMany keys are known when looking first is the cheaper: to insert in vain costs as much as two insertions save.
	tooMany = certain / 3

	// inertia is how many keys a forecast takes into account.
	inertia = 16
)

func (f *forecast) isNew() bool { return f.known.Load() < tooMany }

// saw notes a key. That a note is lost when two are made at a time does not matter.
func (f *forecast) saw(isNew bool) {
	known := f.known.Load()
	if isNew {
		known -= known / inertia
	} else {
		known += (certain - known) / inertia
	}
	f.known.Store(known)
}
