package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-5bb5eb37/idem/bench/peers/internal/load"
	"github.com/seed-5bb5eb37/idem/bench/peers/internal/rival"
)

// A command is a line that a rival's process reads; a reply is the one it answers with.
type command struct {
	Do         string        `json:"do"` // check, open, fill, settle, block, wait, tail-gc, tail-expiry
	Rival      string        `json:"rival,omitempty"`
	Records    int           `json:"records,omitempty"`
	Churn      bool          `json:"churn,omitempty"`
	Workload   string        `json:"workload,omitempty"`
	Goroutines int           `json:"goroutines,omitempty"`
	Duration   time.Duration `json:"duration,omitempty"`
}

type reply struct {
	Values load.Values `json:"values,omitempty"`
	Error  string      `json:"error,omitempty"`
}

// A child is a rival's process: it does what it is told, one command after another, and only when it is told.
type child struct {
	rival   rival.Rival
	session *load.Session
	perKey  time.Duration // what filling took for one key
}

// serve answers commands until in ends.
func serve(in io.Reader, out io.Writer) error {
	var c child
	defer c.close()
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var cmd command
		if err := dec.Decode(&cmd); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("command: %w", err)
		}
		var r reply
		values, err := c.do(cmd)
		if r.Values = values; err != nil {
			r.Error = err.Error()
		}
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
}

func (c *child) do(cmd command) (load.Values, error) {
	switch cmd.Do {
	case "check":
		r, err := byName(cmd.Rival)
		if err != nil {
			return nil, err
		}
		return nil, rival.Check(r)
	case "open":
		return nil, c.open(cmd)
	}
	if c.session == nil {
		return nil, fmt.Errorf("%q before a store was opened", cmd.Do)
	}
	switch cmd.Do {
	case "fill":
		begun := time.Now()
		err := c.session.Fill(cmd.Records)
		c.perKey = time.Since(begun) / time.Duration(max(cmd.Records, 1))
		return nil, err
	case "settle":
		return c.session.Settle(), nil
	case "block":
		return c.session.Block(cmd.Workload, cmd.Goroutines, cmd.Duration)
	case "wait":
		return c.session.Wait(cmd.Goroutines, cmd.Duration)
	case "tail-gc":
		return c.session.TailUnderGC(cmd.Duration)
	case "tail-expiry":
		return c.session.TailUnderExpiry(cmd.Records, c.perKey)
	default:
		return nil, fmt.Errorf("unknown command %q", cmd.Do)
	}
}

func (c *child) open(cmd command) (err error) {
	c.close()
	if c.rival, err = byName(cmd.Rival); err != nil {
		return err
	}
	c.session, err = load.Open(c.rival, cmd.Records, cmd.Churn)
	return err
}

func (c *child) close() {
	if c.session != nil {
		c.session.Close()
		c.session = nil
	}
}

func byName(name string) (rival.Rival, error) {
	for _, r := range rival.All() {
		if r.Name == name {
			return r, nil
		}
	}
	return rival.Rival{}, fmt.Errorf("unknown rival %q", name)
}
