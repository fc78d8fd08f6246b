// Package crowd has callers wait for one key in several processes at a time. The processes are the test binary again,
// which then runs no tests.
package crowd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/seed-5bb5eb37/idem"
)

// variable is that of the environment which has the job of a process that is one of a crowd.
const variable = "IDEM_CROWD_JOB"

// A Job is what all processes of a crowd do.
type Job struct {
	URL     string       // of the server
	Space   string       // the prefix or schema of the store
	Request idem.Request // what each caller begins
	Callers int          // in each process
}

// A Report is what has become of callers.
type Report struct {
	Answers map[string]int // how many were told what: "replay done", state and body of the response, or an error
	Calls   int64          // that their processes made to the server, as far as these count them
}

// A Crowd is processes whose callers wait. Its methods must not be called at the same time.
type Crowd struct{ processes []*process }

type process struct {
	cmd     *exec.Cmd
	reports *json.Decoder
	errors  bytes.Buffer // its standard error
}

// Start starts n processes and returns when all callers wait in each of them. The processes are killed when ctx ends, and
// end by themselves when this one does. TestMain must call [Main].
func Start(ctx context.Context, job Job, n int) (*Crowd, error) {
	text, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("crowd: %w", err)
	}
	c := new(Crowd)
	for i := 0; err == nil && i < n; i++ {
		err = c.add(ctx, string(text))
	}
	for i := 0; err == nil && i < n; i++ {
		// The first report has nothing to say but that it is there.
		err = c.processes[i].reports.Decode(new(Report))
	}
	if err != nil {
		for _, p := range c.processes {
			_ = p.cmd.Process.Kill() // it may have ended
		}
		_, why := c.Wait()
		return nil, errors.Join(fmt.Errorf("crowd: not all wait: %w", err), why)
	}
	return c, nil
}

// add starts a process.
func (c *Crowd) add(ctx context.Context, job string) error {
	p := &process{cmd: exec.CommandContext(ctx, os.Args[0])}
	p.cmd.Env = append(os.Environ(), variable+"="+job)
	p.cmd.Stderr = &p.errors
	// Nothing is written to it: the process learns from its end that this one is no more.
	if _, err := p.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.reports = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	c.processes = append(c.processes, p)
	return nil
}

// Wait returns what the callers were told when all have been told and the processes have ended. The error names the
// processes that did not end well, with what they wrote to their standard error.
func (c *Crowd) Wait() (Report, error) {
	sum := Report{Answers: map[string]int{}}
	var failures []error
	for _, p := range c.processes {
		r, err := p.wait()
		if err != nil {
			failures = append(failures, fmt.Errorf("crowd: process %d: %w\n%s", p.cmd.Process.Pid, err, &p.errors))
		}
		sum.Calls += r.Calls
		for told, n := range r.Answers {
			sum.Answers[told] += n
		}
	}
	return sum, errors.Join(failures...)
}

// wait returns a process's last report when it has ended.
func (p *process) wait() (r Report, err error) {
	reported := p.reports.Decode(&r)
	if err := p.cmd.Wait(); err != nil {
		return r, err // which says more than that there was no report
	}
	return r, reported
}
