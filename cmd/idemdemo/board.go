package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// The page is one file with its style inside, and its script beside it: the policy below then allows no
// script but that file, whatever text a client gets into the page.
//
//go:embed page.html
var pageHTML []byte

//go:embed page.js
var pageJS []byte

// pagePolicy is the page's Content-Security-Policy: nothing from outside, no frames around it.
const pagePolicy = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; " +
	"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const (
	beat   = 500 * time.Millisecond // between two events
	listed = 20                     // rows of the page's tables of keys; the ledger has half as many
)

// A board is the page that shows what the server does. It only reads; what it shows is made of snapshots, so
// that a browser that missed some is right again with the next.
type board struct {
	engine  *idem.Engine
	api     *api
	traffic *traffic
	lease   time.Duration // of the middleware's claims, for the bars
	closing chan struct{} // closed when the server shuts down: events would hold it up for ever
}

// routes adds the page to mux.
func (b *board) routes(mux *http.ServeMux) {
	mux.Handle("GET /{$}", static("text/html; charset=utf-8", pageHTML))
	mux.Handle("GET /page.js", static("text/javascript; charset=utf-8", pageJS))
	mux.HandleFunc("GET /events", b.events)
}

// static serves content that is part of the program.
func static(contentType string, content []byte) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy", pagePolicy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(content) // a browser that left is not told
	})
}

// events sends a snapshot at each beat until the browser leaves or the server shuts down. Server-sent events
// need no library on either side, and the browser connects again by itself.
func (b *board) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		data, err := json.Marshal(b.snapshot(r, time.Now()))
		if err != nil {
			return
		}
		// A browser that sleeps, with its connection open, must not keep this handler for ever.
		late := control.SetWriteDeadline(time.Now().Add(10 * time.Second))
		_, err = fmt.Fprintf(w, "data: %s\n\n", data)
		if errors.Join(late, err, control.Flush()) != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-b.closing:
			return
		}
	}
}

// A snapshot is what one event carries. It has the same size whatever the server goes through.
type snapshot struct {
	Minute     [span]counts `json:"minute"` // oldest second first
	Total      counts       `json:"total"`
	Charges    int          `json:"charges"`
	Saved      uint64       `json:"saved"`
	InProgress int          `json:"inProgress"`
	Waiting    int          `json:"waiting"`
	Records    int          `json:"records"`
	Bytes      int          `json:"bytes"`
	Running    []runningKey `json:"running"`
	Ledger     []charge     `json:"ledger"`
	Shards     []shardSize  `json:"shards"`
}

// A runningKey is a key in progress; its times are in milliseconds.
type runningKey struct {
	Key     string `json:"key"`
	AgeMs   int64  `json:"ageMs"`
	LeaseMs int64  `json:"leaseMs"` // left of the lease
	FullMs  int64  `json:"fullMs"`  // what a heartbeat sets it to
}

// A shardSize is [idem.ShardStats] with names for JSON.
type shardSize struct {
	Records int `json:"records"`
	Bytes   int `json:"bytes"`
}

// snapshot asks everybody for their figures. They are not of one instant, which nobody can see.
func (b *board) snapshot(r *http.Request, now time.Time) snapshot {
	stats := b.engine.Stats()
	s := snapshot{
		Charges:    b.api.books.total(),
		Saved:      stats.Replayed,
		InProgress: stats.InProgress,
		Waiting:    stats.Waiting,
		Records:    stats.Records,
		Bytes:      stats.Bytes,
		Running:    []runningKey{}, // not null in JSON
		Ledger:     b.api.books.last(listed / 2),
		Shards:     make([]shardSize, len(stats.Shards)),
	}
	s.Minute, s.Total = b.traffic.lastMinute(now)
	for i, shard := range stats.Shards {
		s.Shards[i] = shardSize(shard)
	}
	for _, c := range b.api.atWork(listed) {
		record, ok, err := b.engine.Lookup(r.Context(), c.Scope, c.Key)
		if err != nil || !ok || record.State != idem.InProgress {
			continue // it ended since
		}
		s.Running = append(s.Running, runningKey{
			Key:     c.Key,
			AgeMs:   now.Sub(record.Since).Milliseconds(),
			LeaseMs: record.Remaining.Milliseconds(),
			FullMs:  b.lease.Milliseconds(),
		})
	}
	return s
}
