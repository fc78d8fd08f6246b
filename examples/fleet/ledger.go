package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"
)

// A ledger is the world outside of the servers: it writes down what it is told and undoes nothing. With Redis what
// is in it are the charges; with Postgres, where charges are rows, it is who was about to commit one.
type ledger struct {
	web *http.Server
	url string

	// The victim's first entry after so many of all springs the trap.
	victim string
	after  int

	sprung  chan struct{} // closed by that entry, whose server gets no reply
	release chan struct{} // closed when the ledger is

	mu      sync.Mutex
	entries []charge
	caught  bool // the trap is sprung
}

func openLedger(victim string, after int) (*ledger, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &ledger{
		url:    "http://" + listener.Addr().String(),
		victim: victim, after: after,
		sprung: make(chan struct{}), release: make(chan struct{}),
	}
	l.web = &http.Server{Handler: http.HandlerFunc(l.write), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = l.web.Serve(listener) }() // ends by close
	return l, nil
}

func (l *ledger) close() error {
	close(l.release)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return l.web.Shutdown(ctx)
}

// write is the handler.
func (l *ledger) write(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&c); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if l.add(c) {
		// This server is about to be killed. Without a reply it is certain that it has charged and not recorded.
		select {
		case <-r.Context().Done():
		case <-l.release:
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (l *ledger) add(c charge) (trapped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, c)
	if l.caught || c.Server != l.victim || len(l.entries) <= l.after {
		return false
	}
	l.caught = true
	close(l.sprung)
	return true
}

// written returns all entries.
func (l *ledger) written() []charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]charge(nil), l.entries...)
}
