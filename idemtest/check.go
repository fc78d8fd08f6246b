package idemtest

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// A Failure is a row that a store does not pass.
type Failure struct {
	Row Row
	Log string // what the row would have printed
}

// Check runs rows, or all there are when none are given, at the same time and returns those that fail,
// rather than failing tb. It is for tests that show that a fault is seen; [Run] proves stores.
func Check(tb testing.TB, m Maker, rows ...Row) []Failure {
	tb.Helper()
	if len(rows) == 0 {
		rows = Rows()
	}
	records := make([]*recorder, len(rows))
	var done sync.WaitGroup
	for i, row := range rows {
		records[i] = newRecorder(tb)
		done.Go(func() { records[i].run(func() { row.Run(records[i], m) }) })
	}
	done.Wait()
	var failures []Failure
	for i, r := range records {
		if r.failed {
			failures = append(failures, Failure{rows[i], r.log.String()})
		}
	}
	return failures
}

// A recorder is the testing.TB of one row. It keeps what the row reports, and passes on to the test around
// it only what has nothing to do with the row's result, such as TempDir.
type recorder struct {
	testing.TB
	ctx      context.Context //nolint:containedctx // TB.Context returns it
	cancel   context.CancelFunc
	mu       sync.Mutex
	failed   bool
	log      strings.Builder
	cleanups []func()
}

func newRecorder(tb testing.TB) *recorder {
	tb.Helper()
	r := &recorder{TB: tb}
	r.ctx, r.cancel = context.WithCancel(tb.Context())
	return r
}

// run calls f and then the clean-ups, each in a goroutine of its own, which FailNow can end.
func (r *recorder) run(f func()) {
	await(f)
	r.cancel()
	for n := len(r.cleanups); n > 0; n = len(r.cleanups) {
		last := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		await(last)
	}
}

func await(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Log(args ...any) { r.Logf("%s", fmt.Sprintln(args...)) }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.log, format+"\n", args...)
}

func (r *recorder) Error(args ...any) {
	r.Log(args...)
	r.Fail()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.Logf(format, args...)
	r.Fail()
}

func (r *recorder) Fatal(args ...any) {
	r.Log(args...)
	r.FailNow()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Logf(format, args...)
	r.FailNow()
}

// A row that is skipped proves nothing, so it has failed.

func (r *recorder) SkipNow()                         { r.FailNow() }
func (r *recorder) Skip(args ...any)                 { r.Fatal(args...) }
func (r *recorder) Skipf(format string, args ...any) { r.Fatalf(format, args...) }
