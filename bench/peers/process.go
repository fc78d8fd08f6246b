package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
)

// childVariable tells the binary that it is to be a rival's process.
const childVariable = "IDEM_BENCH_PEER"

// A process is a rival's process as its parent sees it. Its calls are made by one goroutine at a time.
type process struct {
	rival  string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	in     io.WriteCloser
	out    *json.Decoder
	stderr lastWords
}

// start starts this binary once more, as the process of a rival. It is killed when ctx ends, and on Linux when
// this process does.
func start(ctx context.Context, rival string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &process{rival: rival, cmd: exec.CommandContext(ctx, exe), cancel: cancel}
	p.cmd.Env = append(environment(), childVariable+"="+rival)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = dieWithParent()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	p.in, p.out = in, json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start a process for %s: %w", rival, err)
	}
	return p, nil
}

// environment is this process's, without what would change how the runtime uses memory.
func environment() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "GOGC" && name != "GOMEMLIMIT" && name != "GODEBUG" {
			env = append(env, v)
		}
	}
	return env
}

// call sends a command and waits for the reply, but not for longer than limit: then the process is killed.
func (p *process) call(cmd command, limit time.Duration) (load.Values, error) {
	cmd.Rival = p.rival
	late := time.AfterFunc(limit, p.cancel)
	defer late.Stop()
	var r reply
	err := json.NewEncoder(p.in).Encode(cmd)
	if err == nil {
		err = p.out.Decode(&r)
	}
	switch {
	case err != nil && !late.Stop():
		return nil, fmt.Errorf("%s: %s took over %v", p.rival, cmd.Do, limit)
	case err != nil:
		return nil, fmt.Errorf("%s: %s: the process ended (%w) %s", p.rival, cmd.Do, err, p.end())
	case r.Error != "":
		return nil, fmt.Errorf("%s: %s", cmd.Do, r.Error)
	}
	return r.Values, nil
}

// end ends the process and returns what it last said.
func (p *process) end() string {
	_ = p.in.Close()
	p.cancel() // also when it is paused, and would not see that its input ended
	_ = p.cmd.Wait()
	return p.stderr.String()
}

// lastWords keeps the beginning of what a process says on its way down, which is where a panic tells its reason.
type lastWords struct{ text []byte }

func (w *lastWords) Write(b []byte) (int, error) {
	const most = 2000
	w.text = append(w.text, b[:min(len(b), most-len(w.text))]...)
	return len(b), nil
}

func (w *lastWords) String() string { return string(w.text) }
