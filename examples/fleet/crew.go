package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/seed-5bb5eb37/idem/internal/testserver"
)

const (
	// victim is the server that is killed. It comes back under another name, so that the ledger tells what it did
	// before from what it did afterwards.
	victim = "b"
	reborn = "b2"

	// downtime is how long it is away. Customers go to the other servers meanwhile.
	downtime = 500 * time.Millisecond

	// launchTries is how often a server is started on another port, since somebody may take the one that was free.
	launchTries = 5
)

// A crew is the three server processes.
type crew struct {
	told   setup
	ledger *ledger
	apart  bool // see fleet

	processes []*testserver.Process
	addrs     []string
}

// launch starts all servers. Those that it started have to be stopped even when it fails.
func (c *crew) launch() error {
	for _, name := range []string{"a", victim, "c"} {
		p, addr, err := c.startAnywhere(name)
		if err != nil {
			return err
		}
		c.processes, c.addrs = append(c.processes, p), append(c.addrs, addr)
	}
	return nil
}

// stop ends all servers.
func (c *crew) stop() (err error) {
	for _, p := range c.processes {
		err = errors.Join(err, p.Stop())
	}
	return err
}

// replace kills the victim when it is in the middle of an order, and starts it again. It tells the world how far
// it is.
func (c *crew) replace(ctx context.Context, tell func(phase string)) error {
	const at = 1 // of victim in launch
	select {
	case <-c.ledger.sprung:
	case <-ctx.Done():
		return errors.New("there was no order left to kill a server with")
	}
	// SIGKILL: nothing is flushed, closed or given back. What the server has claimed stays claimed.
	if err := c.processes[at].Kill(); err != nil {
		return err
	}
	tell("server " + victim + " was killed")
	time.Sleep(downtime)
	p, err := c.start(reborn, c.addrs[at])
	if err != nil {
		return err
	}
	c.processes[at] = p
	tell("server " + victim + " is back as " + reborn)
	return nil
}

// startAnywhere starts a server on a free port.
func (c *crew) startAnywhere(name string) (p *testserver.Process, addr string, err error) {
	for range launchTries {
		var port int
		if port, err = testserver.FreePort(); err != nil {
			break
		}
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if p, err = c.start(name, addr); err == nil {
			return p, addr, nil
		}
	}
	return nil, "", err
}

// start starts a server: this program, told to be one. It returns when the server answers.
func (c *crew) start(name, addr string) (*testserver.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told := assignment{c.told, name, addr, c.ledger.url}
	if c.apart {
		told.Space += "_" + name
	}
	spec, err := json.Marshal(told)
	if err != nil {
		return nil, err
	}
	return testserver.Start(exec.Command(self, "-serve", string(spec)), func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/healthy", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}
