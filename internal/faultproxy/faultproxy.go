// Package faultproxy is a TCP proxy that loses what a network loses: the replies to requests that were carried
// out, all bytes of a connection that stays open, connections. It stands between a client under test and a
// real server.
package faultproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// A Proxy hands bytes on between its clients and one server. All methods may be called by any number of
// goroutines.
type Proxy struct {
	target    string
	listener  net.Listener
	blackHole atomic.Bool
	ended     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  map[*link]struct{}
	drops  int    // replies yet to be dropped
	only   []byte // of requests that contain it
}

// A link is one client's connection and the one to the server that belongs to it.
type link struct {
	client, server net.Conn
	doomed         atomic.Bool // to be cut instead of a reply
}

// New starts a proxy for the server at target, which is a host and a port. The server need not run yet: a client
// that can't be connected to it is cut. Close the proxy when it is no longer needed.
func New(target string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{target: target, listener: listener, links: make(map[*link]struct{})}
	p.ended.Go(p.serve)
	return p, nil
}

// Addr returns the host and the port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// DropReplies lets the next n requests reach the server, and cuts their connections when it replies, before a
// byte of the reply has come back. A request is what a client sends in one piece, on any connection, so the
// first words of a new connection are one too: see [Proxy.DropRepliesTo]. Zero ends the dropping.
func (p *Proxy) DropReplies(n int) { p.DropRepliesTo("", n) }

// DropRepliesTo is [Proxy.DropReplies] for requests that contain text, a key for instance. The last call
// counts.
func (p *Proxy) DropRepliesTo(text string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops, p.only = n, []byte(text)
}

// BlackHole swallows all bytes in both directions while it is on. Connections stay open, and new ones are
// accepted. One that lost bytes is out of step with its server for good.
func (p *Proxy) BlackHole(on bool) { p.blackHole.Store(on) }

// Cut closes all connections that there are.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Connections returns how many connections there are.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close closes all connections, accepts no more, and returns when the proxy's goroutines have ended. Closing
// again does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Cut()
	p.ended.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// serve accepts clients until the proxy is closed.
func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.ended.Go(func() { p.connect(client) })
	}
}

// connect links a client to the server.
func (p *Proxy) connect(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	if !p.add(l) {
		l.cut()
		return
	}
	p.ended.Go(func() { p.replies(l) })
	p.requests(l)
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.links[l] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) remove(l *link) {
	l.cut()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// requests hands on what the client sends.
func (p *Proxy) requests(l *link) {
	defer p.remove(l)
	p.pump(l.server, l.client, func(b []byte) bool {
		if p.dooms(b) {
			l.doomed.Store(true)
		}
		return true
	})
}

// replies hands on what the server sends. That it replies is how the proxy knows that the request was carried
// out.
func (p *Proxy) replies(l *link) {
	defer l.cut()
	p.pump(l.client, l.server, func([]byte) bool { return !l.doomed.Load() })
}

// pump copies until a connection ends or pass says no.
func (p *Proxy) pump(to, from net.Conn, pass func([]byte) bool) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && !p.blackHole.Load() {
			if !pass(buf[:n]) {
				return
			}
			if _, failed := to.Write(buf[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// dooms reports whether the reply to a request is to be dropped.
func (p *Proxy) dooms(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drops <= 0 || !bytes.Contains(request, p.only) {
		return false
	}
	p.drops--
	return true
}

// cut ends both pumps.
func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}
