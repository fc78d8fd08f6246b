package main

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/report"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

func everybody(rival.Rival) bool { return true }

// check has every rival show that it answers rightly. They mostly wait, so all do it at once.
func (r *run) check(ctx context.Context) {
	r.progress.begin("checking that every rival answers rightly")
	r.parallel(len(r.rivals), r.rivals, func(v rival.Rival) {
		p, err := start(ctx, v.Name)
		if err != nil {
			r.fail(v.Name, err)
			return
		}
		defer p.end()
		r.ask(p, command{Do: "check"})
	})
	r.progress.end(checkCost)
}

// steady measures stores that hold r.keys records, of which none expires.
func (r *run) steady(ctx context.Context) {
	steps := r.steadySteps()
	if len(steps) == 0 {
		return
	}
	t := newTurns()
	defer t.end()
	processes := r.launch(ctx, t, everybody, func(p *process) bool { return r.fill(p, r.keys, 2*r.keys) })
	for pass := range r.passes {
		for _, s := range steps {
			s.row.Pass = pass + 1
			r.pass(t, suitable(processes, s.row.Workload), s)
		}
	}
}

// fill opens a store and fills it.
func (r *run) fill(p *process, keys, capacity int) bool {
	r.progress.begin("filling " + p.rival)
	defer r.progress.end(fillCost(keys))
	for _, cmd := range []command{{Do: "open", Records: capacity}, {Do: "fill", Records: keys}, {Do: "settle"}} {
		if _, ok := r.ask(p, cmd); !ok {
			return false
		}
	}
	return true
}

func (r *run) steadySteps() (steps []step) {
	for _, w := range []struct {
		name       string
		goroutines []int
	}{{"replay", []int{1, 2, 32}}, {"hot", []int{1, 2, 32}}, {"zipf", []int{1, 2}}} {
		for _, g := range w.goroutines {
			steps = r.add(steps, report.Row{Workload: w.name, Goroutines: g}, command{Do: "block", Duration: r.block})
		}
	}
	const duplicates = 8
	steps = r.add(steps, report.Row{Workload: "wait", Goroutines: duplicates}, command{Do: "wait", Duration: r.block})
	return r.add(steps, report.Row{Workload: "tail-gc"}, command{Do: "tail-gc", Duration: 4 * r.block})
}

// add adds a step if its workload is wanted.
func (r *run) add(steps []step, row report.Row, cmd command) []step {
	if !r.workloads[row.Workload] {
		return steps
	}
	row.Live = r.keys
	cmd.Workload, cmd.Goroutines = row.Workload, row.Goroutines
	return append(steps, step{row, cmd, cmd.Duration*6/5 + 20*time.Millisecond})
}

// suitable are the processes that can do a workload.
func suitable(processes []*process, workload string) (able []*process) {
	for _, p := range processes {
		if workload != "wait" || canWait[p.rival] {
			able = append(able, p)
		}
	}
	return able
}

// canWait are the rivals with which duplicates can wait: the adapters that are a rival.Waiter. go test holds the
// two against each other.
var canWait = map[string]bool{"idem": true, "mutex+map": true, "fiber": true}

// churn measures stores in which everything expires.
func (r *run) churn(ctx context.Context) {
	if !r.workloads["fresh"] {
		return
	}
	t := newTurns()
	defer t.end()
	processes := r.launch(ctx, t, everybody, func(p *process) bool {
		_, ok := r.ask(p, command{Do: "open", Records: 3 * r.keys, Churn: true})
		return ok
	})
	for pass := range r.freshPasses() {
		for _, g := range []int{1, 2} {
			r.pass(t, processes, step{
				report.Row{Workload: "fresh", Goroutines: g, Pass: pass + 1},
				command{Do: "block", Workload: "fresh", Goroutines: g, Duration: r.block},
				freshCost(r.block),
			})
		}
	}
}

// expiry measures stores in which r.keys records expire within a second, besides a tenth as many that stay.
func (r *run) expiry(ctx context.Context) {
	if !r.workloads["tail-expiry"] {
		return
	}
	t := newTurns()
	defer t.end()
	stay := max(r.keys/10, 1)
	processes := r.launch(ctx, t, func(v rival.Rival) bool { return v.Expiry == rival.PerRecord }, func(p *process) bool {
		return r.fill(p, stay, 3*r.keys)
	})
	for pass := range r.expiryPasses() {
		r.pass(t, processes, step{
			report.Row{Workload: "tail-expiry", Live: stay, Pass: pass + 1},
			command{Do: "tail-expiry", Records: r.keys},
			expiryCost(r.keys),
		})
	}
}

// growth measures one store after the other, or two that take turns, at several numbers of live records.
func (r *run) growth(ctx context.Context) {
	sizes := r.sizes()
	if len(sizes) == 0 {
		return
	}
	r.parallel(r.growers, r.standing(), r.grower(ctx, newTurns(), sizes))
}

func (r *run) grower(ctx context.Context, t *turns, sizes []int) func(rival.Rival) {
	return func(v rival.Rival) {
		p, err := start(ctx, v.Name)
		if err != nil {
			r.fail(v.Name, err)
			return
		}
		t.join(p)
		defer t.leave(p)
		if _, ok := r.ask(p, command{Do: "open", Records: sizes[len(sizes)-1]}); !ok {
			return
		}
		before := 0
		for _, live := range sizes {
			r.progress.begin("growing to " + report.Count(live) + ": " + v.Name)
			if _, ok := r.ask(p, command{Do: "fill", Records: live}); !ok {
				return
			}
			t.alone(p, func() { r.look(p, live) })
			r.progress.end(r.growCost(before, live))
			before = live
		}
	}
}

// look measures a store that holds so many records.
func (r *run) look(p *process, live int) {
	v, ok := r.ask(p, command{Do: "settle"})
	if !ok {
		return
	}
	for workload, values := range map[string][]string{"memory": {"resident B/record", "heap B/record"}, "gc": {"gc cpu-ms"}} {
		row := report.Row{Rival: p.rival, Workload: workload, Live: live, Pass: 1, Values: map[string]float64{}}
		for _, name := range values {
			row.Values[name] = v[name]
		}
		if r.wants(workload, live) {
			r.record(row)
		}
	}
	if !r.wants("growth", live) {
		return
	}
	for pass := range 3 {
		row := report.Row{Rival: p.rival, Workload: "growth", Goroutines: 1, Live: live, Pass: pass + 1}
		if row.Values, ok = r.ask(p, command{Do: "block", Workload: "replay", Goroutines: 1, Duration: r.block}); ok {
			r.record(row)
		}
	}
}
