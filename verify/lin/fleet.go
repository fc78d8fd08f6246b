package lin

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"
)

// lead is how long before its start a task is sent out, so that all processes have it by then.
const lead = 2 * time.Millisecond

// A Fleet is processes that call one store on a server, each through a client of its own. Its methods must not be called
// at the same time.
type Fleet struct {
	origin    time.Time
	clients   int
	processes []*process
}

// A process is a child that runs [Serve].
type process struct {
	cmd     *exec.Cmd
	share   share
	in      io.Closer
	tasks   *gob.Encoder
	reports *gob.Decoder
	errors  bytes.Buffer // its standard error
}

// NewFleet starts a process for each of shares, which say how many clients it has, and waits until their stores are
// open. command returns what starts a process that calls [Serve] and ends when that returns. Its standard streams must
// not be set.
func NewFleet(command func() *exec.Cmd, shares ...int) (*Fleet, error) {
	f := &Fleet{origin: time.Now()}
	// Read back from the wall clock, as the others have to.
	wall := f.origin.UnixNano()
	f.origin = momentOf(wall)
	for _, n := range shares {
		p, err := start(command(), share{f.clients, n})
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.processes = append(f.processes, p)
		f.clients += n
	}
	err := f.each(func(p *process) error {
		return p.ask(greeting{wall, p.share.first, p.share.clients}, new(greeting))
	})
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func start(cmd *exec.Cmd, s share) (*process, error) {
	p := &process{cmd: cmd, share: s}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("lin: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("lin: %w", err)
	}
	cmd.Stderr = &p.errors
	p.in, p.tasks, p.reports = in, gob.NewEncoder(in), gob.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("lin: %w", err)
	}
	return p, nil
}

// ask sends a question and reads the answer.
func (p *process) ask(question, answer any) error {
	if err := p.tasks.Encode(question); err != nil {
		return fmt.Errorf("lin: process %d: %w", p.cmd.Process.Pid, err)
	}
	if err := p.reports.Decode(answer); err != nil {
		return fmt.Errorf("lin: process %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

func (f *Fleet) each(do func(p *process) error) error {
	var all errgroup.Group
	for _, p := range f.processes {
		all.Go(func() error { return do(p) })
	}
	return all.Wait()
}

// Record lets the clients of all workloads loose at the same time and returns the history of each. Their number is the
// fleet's, whatever the workloads say.
func (f *Fleet) Record(workloads ...Workload) ([][]Event, error) {
	t := task{Workloads: make([]Workload, len(workloads))}
	for i, w := range workloads {
		w.Clients = f.clients
		t.Workloads[i] = w.withDefaults()
	}
	t.At = time.Since(f.origin) + lead
	reports := make([]report, len(f.processes))
	var all errgroup.Group
	for i, p := range f.processes {
		all.Go(func() error { return p.ask(t, &reports[i]) })
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	histories := make([][]Event, len(workloads))
	for _, r := range reports {
		for i, packed := range r.Histories {
			histories[i] = append(histories[i], unpack(packed)...)
		}
	}
	return histories, nil
}

// Close ends the processes and waits for them. The error is that of a process which did not end well, and has what it
// wrote to its standard error.
func (f *Fleet) Close() error {
	return f.each(func(p *process) error {
		// It may have ended by itself, and then says why in what follows.
		_ = p.in.Close()
		if err := p.cmd.Wait(); err != nil {
			return fmt.Errorf("lin: process %d: %w\n%s", p.cmd.Process.Pid, err, &p.errors)
		}
		return nil
	})
}
