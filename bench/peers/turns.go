package main

import (
	"slices"
	"sync"
)

// turns lets processes fill their stores at the same time, but measure one after the other: a process that
// measures has the machine for itself.
type turns struct {
	measuring sync.Mutex // held while one measures

	mu      sync.Mutex
	members []*process
	awake   map[*process]bool // what they are while nobody measures
}

func newTurns() *turns { return &turns{awake: map[*process]bool{}} }

// join adds a process that runs.
func (t *turns) join(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = append(t.members, p)
	t.awake[p] = true
}

// park stops a process until it measures.
func (t *turns) park(p *process) {
	t.measuring.Lock()
	defer t.measuring.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.awake[p] = false
	p.pause()
}

// leave ends a process.
func (t *turns) leave(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members = slices.DeleteFunc(t.members, func(m *process) bool { return m == p })
	delete(t.awake, p)
	p.end()
}

// end ends all processes.
func (t *turns) end() {
	for _, p := range slices.Clone(t.members) {
		t.leave(p)
	}
}

// alone runs f while all processes but p are stopped.
func (t *turns) alone(p *process, f func()) {
	t.measuring.Lock()
	defer t.measuring.Unlock()
	t.each(func(m *process, awake bool) {
		if m != p && awake {
			m.pause()
		}
	})
	p.resume()
	f()
	t.each(func(m *process, awake bool) {
		if awake {
			m.resume()
		} else {
			m.pause()
		}
	})
}

func (t *turns) each(f func(p *process, awake bool)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.members {
		f(m, t.awake[m])
	}
}
