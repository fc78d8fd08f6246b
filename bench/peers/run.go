package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// A config is what the flags say.
type config struct {
	rivals    []rival.Rival
	workloads map[string]bool
	passes    int
	keys      int
	block     time.Duration
	out       string
}

// A run is one measurement of all rivals.
type run struct {
	config
	progress *progress
	growers  int // stores that grow at a time: two, if the memory suffices

	mu     sync.Mutex
	rows   []report.Row
	failed map[string]error // rivals that are left out from here on
}

func newRun(cfg config, p *progress) *run {
	r := &run{config: cfg, progress: p, growers: 1, failed: map[string]error{}}
	if 2*r.growerBytes() < available() {
		r.growers = 2
	}
	return r
}

// measure runs the stages. A rival that fails is left out of the rest; without idem there is nothing to compare.
func (r *run) measure(ctx context.Context) error {
	for _, stage := range []func(context.Context){r.check, r.steady, r.churn, r.expiry, r.growth} {
		stage(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.failed[report.Baseline]; err != nil {
			return err
		}
	}
	return nil
}

// errs are the failures of all rivals.
func (r *run) errs() error {
	var errs []error
	for _, v := range r.rivals {
		errs = append(errs, r.failed[v.Name])
	}
	return errors.Join(errs...)
}

// fail leaves a rival out from here on.
func (r *run) fail(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed[name] == nil {
		r.failed[name] = err
		r.progress.say("left out: " + err.Error())
	}
}

func (r *run) record(row report.Row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows = append(r.rows, row)
}

// standing are the rivals that have not failed.
func (r *run) standing() (names []rival.Rival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.rivals {
		if r.failed[v.Name] == nil {
			names = append(names, v)
		}
	}
	return names
}

// limit is how long one command may take before its rival is given up.
const limit = 5 * time.Minute

// ask sends a command, and fails the rival if that fails.
func (r *run) ask(p *process, cmd command) (load.Values, bool) {
	v, err := p.call(cmd, limit)
	if err != nil {
		r.fail(p.rival, err)
	}
	return v, err == nil
}

// launch starts a process for each standing rival that suits, two at a time, and prepares it. Processes that
// cannot be prepared are not in the result.
func (r *run) launch(ctx context.Context, t *turns, suits func(rival.Rival) bool, prepare func(*process) bool) []*process {
	var ready []*process
	r.parallel(2, slices.DeleteFunc(r.standing(), func(v rival.Rival) bool { return !suits(v) }), func(v rival.Rival) {
		p, err := start(ctx, v.Name)
		if err != nil {
			r.fail(v.Name, err)
			return
		}
		t.join(p)
		if !prepare(p) {
			t.leave(p)
			return
		}
		t.park(p)
		r.mu.Lock()
		defer r.mu.Unlock()
		ready = append(ready, p)
	})
	slices.SortFunc(ready, func(a, b *process) int { return r.rank(a.rival) - r.rank(b.rival) })
	return ready
}

func (r *run) rank(name string) int {
	return slices.IndexFunc(r.rivals, func(v rival.Rival) bool { return v.Name == name })
}

// parallel calls f for each rival, at most n at a time.
func (r *run) parallel(n int, rivals []rival.Rival, f func(rival.Rival)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, n)
	for _, v := range rivals {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(v)
		})
	}
	wg.Wait()
}

// A step is one measurement of one rival, in turn with those of the others.
type step struct {
	row  report.Row
	cmd  command
	cost time.Duration // what it takes, about
}

// pass takes one step with each process, idem among them, so that a ratio inside a pass is one of neighbours.
func (r *run) pass(t *turns, processes []*process, s step) {
	for _, p := range processes {
		if r.isOut(p.rival) {
			continue
		}
		r.progress.begin(fmt.Sprintf("%s, pass %d of %d: %s", s.name(), s.row.Pass, r.passes, p.rival))
		t.alone(p, func() {
			if v, ok := r.ask(p, s.cmd); ok {
				row := s.row
				row.Rival, row.Values = p.rival, v
				r.record(row)
			}
		})
		r.progress.end(s.cost)
	}
}

func (r *run) isOut(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed[name] != nil
}

func (s step) name() string {
	if s.row.Goroutines == 0 {
		return s.row.Workload
	}
	return fmt.Sprintf("%s g=%d", s.row.Workload, s.row.Goroutines)
}
