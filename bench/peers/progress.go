package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress shows how far a run is: one line that is rewritten on a terminal, lines now and then elsewhere.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	estimate time.Duration
	done     time.Duration // of the estimate
	begun    time.Time
	said     time.Time
}

func newProgress(w io.Writer, terminal bool) *progress {
	return &progress{w: w, terminal: terminal, begun: time.Now()}
}

// expect sets what the whole run takes.
func (p *progress) expect(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.estimate = d
}

// begin shows what is done now.
func (p *progress) begin(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%3d %%, %v: %s", p.percentLocked(), time.Since(p.begun).Round(time.Second), what)
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K%.78s", line)
		return
	}
	const pause = 5 * time.Second // between lines that somebody reads later
	if time.Since(p.said) >= pause {
		p.said = time.Now()
		fmt.Fprintln(p.w, line)
	}
}

func (p *progress) percentLocked() int {
	if p.estimate <= 0 {
		return 0
	}
	return min(99, int(100*p.done/p.estimate))
}

// end adds to what is done.
func (p *progress) end(cost time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += cost
}

// say writes a line that stays.
func (p *progress) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintln(p.w, line)
}
