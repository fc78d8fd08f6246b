package msgidem_test

import (
	"container/heap"
	"context"
	"io"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A market is a broker as mean as brokers are: what is not acknowledged within the ack wait it delivers again, an
// acknowledgement it takes from any delivery, stale ones too, and it loses what it is told now and then.
type market struct {
	faults  *faults
	ackWait time.Duration

	mu      sync.Mutex // guards what follows
	parcels []*parcel
	queue   schedule
	open    int           // parcels that are not settled
	changed chan struct{} // closed and made anew when an earlier delivery becomes due
	deliver int           // deliveries
}

// A parcel is a message as the broker has it.
type parcel struct {
	msg     msgidem.Message
	due     time.Time // of the next delivery
	settled string    // "ack" or "term"
}

// A schedule is a heap of parcels by when they are due; an entry whose time is not the parcel's is out of date.
type schedule []entry

type entry struct {
	due time.Time
	p   *parcel
}

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].due.Before(s[j].due) }
func (s schedule) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)        { *s = append(*s, x.(entry)) }
func (s *schedule) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

func newMarket(f *faults, ackWait time.Duration) *market {
	return &market{faults: f, ackWait: ackWait, changed: make(chan struct{})}
}

func (m *market) publish(msg msgidem.Message) {
	msg.AckWait = m.ackWait
	p := &parcel{msg: msg}
	m.parcels = append(m.parcels, p)
	m.open++
	m.plan(p, time.Now())
}

// plan sets when the parcel is delivered next. The caller holds mu.
func (m *market) plan(p *parcel, due time.Time) {
	p.due = due
	heap.Push(&m.queue, entry{due, p})
	if m.queue[0].p == p {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// Next implements msgidem.Source, for several consumers at a time.
func (m *market) Next(ctx context.Context) (msgidem.Delivery, error) {
	for {
		d, wait, changed := m.next()
		switch {
		case d != nil:
			return d, nil
		case wait < 0:
			return nil, io.EOF
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// next returns a delivery, or how long to wait for one, below zero if there will be none.
func (m *market) next() (msgidem.Delivery, time.Duration, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for len(m.queue) > 0 {
		e := m.queue[0]
		if e.p.settled != "" || !e.p.due.Equal(e.due) {
			heap.Pop(&m.queue)
			continue
		}
		if wait := e.due.Sub(now); wait > 0 {
			return nil, wait, m.changed
		}
		heap.Pop(&m.queue)
		e.p.msg.Attempt++
		m.deliver++
		again := m.ackWait
		if m.faults.hit("redeliver", 0.01) {
			again = time.Millisecond
		}
		m.plan(e.p, now.Add(again))
		return &lot{market: m, p: e.p, msg: e.p.msg}, 0, nil
	}
	return nil, -1, nil
}

// A lot is one delivery of a parcel.
type lot struct {
	market *market
	p      *parcel
	msg    msgidem.Message
}

func (l *lot) Message() msgidem.Message { return l.msg }
func (*lot) Can() msgidem.Capability    { return everything }

func (l *lot) Ack(context.Context) error { return l.settle("ack") }

func (l *lot) Term(context.Context, string) error { return l.settle("term") }

func (l *lot) NakAfter(_ context.Context, delay time.Duration) error {
	return l.tell("nak", func() { l.market.plan(l.p, time.Now().Add(delay)) })
}

func (l *lot) Heartbeat(context.Context) error {
	return l.tell("beat", func() { l.market.plan(l.p, time.Now().Add(l.market.ackWait)) })
}

func (l *lot) settle(how string) error {
	return l.tell(how, func() {
		l.p.settled = how
		if l.market.open--; l.market.open == 0 {
			close(l.market.changed)
			l.market.changed = make(chan struct{})
		}
	})
}

// tell does what a consumer asks for, unless it is lost on its way, with or without an error.
func (l *lot) tell(what string, do func()) error {
	if l.market.faults.hit(what+" fails", 0.02) {
		return errDown
	}
	if l.market.faults.hit(what+" is lost", 0.01) {
		return nil
	}
	l.market.mu.Lock()
	defer l.market.mu.Unlock()
	if l.p.settled == "" {
		do()
	}
	if l.market.faults.hit(what+" panics", 0.001) {
		panic("the adapter, after " + what)
	}
	return nil
}
