package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// pause is that between two looks at whether all callers wait.
const pause = 2 * time.Millisecond

// A Member is what a process of a crowd has.
type Member struct {
	Store   idem.Store   // its own, on the server that all share
	Waiting func() int   // how many callers wait there
	Calls   func() int64 // how many the process has made to the server; nil if it does not count them
}

// Main is what TestMain calls first. In a process of a crowd it does the job, with what open opens, and ends the
// process; in others it does nothing.
func Main(open func(Job) (Member, error)) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	if err := work(text, open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func work(text string, open func(Job) (Member, error)) error {
	var job Job
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	m, err := open(job)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return m.serve(ctx, job, json.NewEncoder(os.Stdout))
}

// serve sends a first report when all callers wait, and a second one when all have been told.
func (m Member) serve(ctx context.Context, job Job, reports *json.Encoder) error {
	told := make(chan string, job.Callers)
	for range job.Callers {
		go func() { told <- answer(m.Store.Begin(ctx, job.Request)) }()
	}
	for m.Waiting() < job.Callers {
		select {
		case <-time.After(pause):
		case text := <-told:
			return fmt.Errorf("crowd: a caller does not wait: %s", text)
		}
	}
	if err := reports.Encode(Report{}); err != nil {
		return err
	}
	r := Report{Answers: map[string]int{}}
	for range job.Callers {
		r.Answers[<-told]++
	}
	if m.Calls != nil {
		r.Calls = m.Calls()
	}
	return reports.Encode(r)
}

// answer is what a caller was told, in words.
func answer(out idem.Outcome, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%v %s", out.State, out.Response.Body)
}
