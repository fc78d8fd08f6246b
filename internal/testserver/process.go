package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	readyTimeout = 30 * time.Second      // of a server that starts
	readyPause   = 20 * time.Millisecond // between two looks at whether it has
	stopTimeout  = 10 * time.Second      // of a server that was asked to end
	maxOutput    = 64 << 10              // bytes of output that are kept, the last ones
)

// A Process is a child process that runs. Its methods may be called by any number of goroutines, and again
// when it has ended.
type Process struct {
	cmd    *exec.Cmd
	output *tail
	leash  io.Closer
	done   chan struct{} // closed when the process has ended
}

// Start runs cmd and waits until ready returns nil, for 30 seconds at most; a nil ready is ready at once. A
// process that is not ready by then is ended, and the error holds its output. cmd must not have been started,
// and must have no Stdout or Stderr: [Process.Output] has both.
//
// The child does not outlive this process, even when that is killed. A server that has to run as another user
// should be given cmd.SysProcAttr.Credential, not be started by su, which would be what is ended in its stead.
func Start(cmd *exec.Cmd, ready func(ctx context.Context) error) (*Process, error) {
	p := &Process{cmd: cmd, output: new(tail), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if cmd.WaitDelay == 0 {
		// A grandchild that holds the output open must not keep Stop from returning.
		cmd.WaitDelay = stopTimeout
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("testserver: start %s: %w", cmd.Path, err)
	}
	var err error
	p.leash, err = leash(cmd.Process.Pid)
	go p.wait()
	if err == nil && ready != nil {
		err = p.await(ready)
	}
	if err != nil {
		_ = p.Kill()
		return nil, fmt.Errorf("testserver: %s: %w; its output:\n%s", cmd.Path, err, p.Output())
	}
	return p, nil
}

// wait is the goroutine of a Process. It ends with the child.
func (p *Process) wait() {
	_ = p.cmd.Wait() // how it ended is in ProcessState
	if p.leash != nil {
		_ = p.leash.Close()
	}
	close(p.done)
}

// await polls ready.
func (p *Process) await(ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended before it was ready (%v): %w", p.cmd.ProcessState, err)
		case <-ctx.Done():
			return fmt.Errorf("not ready after %v: %w", readyTimeout, err)
		case <-time.After(readyPause):
		}
	}
}

// Stop asks the process to end (SIGTERM), kills it when it has not done so after 10 seconds, and waits for its
// end. It returns an error when it had to kill it.
func (p *Process) Stop() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
		return nil
	case <-timeout.C:
		return errors.Join(fmt.Errorf("testserver: %s did not end on SIGTERM and was killed", p.cmd.Path), p.Kill())
	}
}

// Kill ends the process at once (SIGKILL) and waits for its end.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// signal sends sig to a process that has not ended.
func (p *Process) signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("testserver: %s: %w", p.cmd.Path, err)
	}
	return nil
}

// Pid returns the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Output returns what the process has written to standard output and standard error: the last 64 KiB of it. It may
// be a moment behind while the process runs.
func (p *Process) Output() string { return p.output.String() }

// leash has a shell kill the process pid as soon as this process is no more, which the shell learns from the end
// of its input. Closing the leash lets the process go. (Linux could do so itself, by Pdeathsig, but that minds the
// thread that started the child and not the process; and other systems can't.)
func leash(pid int) (io.Closer, error) {
	watcher := exec.Command("sh", "-c", `read -r free || kill -9 "$1"`, "sh", strconv.Itoa(pid))
	in, err := watcher.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := watcher.Start(); err != nil {
		return nil, err
	}
	return &slip{in, watcher}, nil
}

// A slip ends a watcher.
type slip struct {
	in      io.WriteCloser
	watcher *exec.Cmd
}

// Close lets the watcher end without having killed anybody.
func (s *slip) Close() error {
	_, err := io.WriteString(s.in, "free\n")
	return errors.Join(err, s.in.Close(), s.watcher.Wait())
}

// A tail keeps the last bytes that were written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte // at most twice maxOutput
}

// Write implements [io.Writer].
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	// It is cut only when it has doubled, so that the copying is paid by what was written.
	if over := len(t.buf) - maxOutput; over > maxOutput {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-maxOutput):])
}
