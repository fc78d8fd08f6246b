package idemtest

import (
	"fmt"
	"math"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

const year = 365 * 24 * time.Hour

// tiny are durations below or near the resolution of a store's clock.
func tiny() []time.Duration {
	return []time.Duration{1, 999, time.Microsecond, 999 * time.Microsecond, time.Millisecond}
}

// huge are durations that end beyond what a timer wheel, a 64-bit clock, or a column of a table may express.
func huge() []time.Duration {
	return []time.Duration{400 * 24 * time.Hour, 100 * year, math.MaxInt64 - 1, math.MaxInt64}
}

func negative() []time.Duration { return []time.Duration{-1, -time.Hour, math.MinInt64} }

// A span is the time that a call took. The store read its clock somewhere within.
type span struct{ from, to time.Time }

// timed calls f.
func timed(f func()) span {
	from := time.Now()
	f()
	return span{from, time.Now()}
}

// sleepPast pauses until d has passed for certain since something that happened within s.
func (r *rig) sleepPast(s span, d time.Duration) {
	r.sleepUntil(s.to.Add(d + r.maker.Resolution))
}

func (r *rig) sleepUntil(t time.Time) { r.sleep(time.Until(t)) }

// sleep lets time pass, unless the test is over.
func (r *rig) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

// settle gives the callers that were started time to wait.
func (r *rig) settle() { r.sleep(r.stretch(calm)) }

// eventually wants ok to become true.
func (r *rig) eventually(ok func() bool, what string) {
	r.Helper()
	for end := time.Now().Add(r.stretch(patience)); !ok(); r.sleep(time.Millisecond) {
		require.True(r, time.Now().Before(end), "%s: not yet", what)
	}
}

// judge wants that the answer to a Begin is what it must be d after something that happened within
// set: before as long as the time was not over when Begin returned, after when it was over as Begin was
// called. In between both are right.
func (r *rig) judge(set span, d time.Duration, asked span, got, before, after idem.State) {
	r.Helper()
	if asked.to.Before(set.from.Add(d - r.maker.Resolution)) {
		require.Equal(r, before.String(), got.String(), "%v before the end", set.from.Add(d).Sub(asked.to))
	}
	if !asked.from.Before(set.to.Add(d + r.maker.Resolution)) {
		require.Equal(r, after.String(), got.String(), "%v after the end", asked.from.Sub(set.to.Add(d)))
	}
}

// runsOut has something run out after d, on one key for each moment at which it then looks: well before,
// just before, at and after the end. A key is looked at once, so that looking can have no part in it.
func (r *rig) runsOut(by string, d time.Duration, set func(idem.Request), before, after idem.State) {
	r.Helper()
	const n = 8
	keys := make([]idem.Request, n)
	spans := make([]span, n)
	for i := range keys {
		keys[i] = r.request(fmt.Sprint(by, " ", i))
		spans[i] = timed(func() { set(keys[i]) })
	}
	looks := [n]time.Duration{0, d / 4, d / 2, d - time.Millisecond, d - 1, d, d + r.maker.Resolution, d + r.short()}
	for i, at := range looks {
		r.sleepUntil(spans[i].to.Add(at))
		var out idem.Outcome
		asked := timed(func() { out = r.begin(keys[i]) })
		r.judge(spans[i], d, asked, out.State, before, after)
	}
}
