package faultproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/faultproxy"
)

// A server answers each line with "done" and the line, and keeps what it was asked to do.
type server struct {
	net.Listener
	replies chan struct{} // if not nil, there are none until it is closed

	mu    sync.Mutex
	asked []string
}

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &server{Listener: l}
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			ended.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close() // a test may have done so
		ended.Wait()
	})
	return s
}

func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		s.mu.Lock()
		s.asked = append(s.asked, lines.Text())
		s.mu.Unlock()
		if s.replies != nil {
			<-s.replies
		}
		if _, err := fmt.Fprintln(conn, "done", lines.Text()); err != nil {
			return
		}
	}
}

// did returns what the server was asked to do.
func (s *server) did() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, " ")
}

// A client is one connection through the proxy.
type client struct {
	net.Conn
	replies *bufio.Reader
}

func start(t *testing.T) (*server, *faultproxy.Proxy) {
	t.Helper()
	s := newServer(t)
	p, err := faultproxy.New(s.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return s, p
}

func dial(t *testing.T, p *faultproxy.Proxy) client {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return client{conn, bufio.NewReader(conn)}
}

// ask sends a line and returns the reply.
func (c client) ask(line string) (string, error) {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	reply, err := c.replies.ReadString('\n')
	return strings.TrimSpace(reply), err
}

func (c client) works(t *testing.T, line string) {
	t.Helper()
	reply, err := c.ask(line)
	require.NoError(t, err)
	require.Equal(t, "done "+line, reply)
}

func TestProxy(t *testing.T) {
	t.Run("hands on what it is given", func(t *testing.T) {
		_, p := start(t)
		a, b := dial(t, p), dial(t, p)
		long := strings.Repeat("x", 50_000)
		a.works(t, "1")
		b.works(t, "2")
		a.works(t, long)
		require.Equal(t, 2, p.Connections())
	})
	t.Run("drops the replies to requests that were carried out", func(t *testing.T) {
		s, p := start(t)
		a, b, c, d := dial(t, p), dial(t, p), dial(t, p), dial(t, p)
		d.works(t, "0")
		p.DropReplies(2)
		for i, conn := range []client{a, b} {
			reply, err := conn.ask(fmt.Sprint(i + 1))
			require.ErrorIs(t, err, io.EOF)
			require.Empty(t, reply, "not a byte")
		}
		c.works(t, "3")
		d.works(t, "4")
		require.Equal(t, "0 1 2 3 4", s.did())
	})
	t.Run("drops the replies to chosen requests only", func(t *testing.T) {
		s, p := start(t)
		a, b := dial(t, p), dial(t, p)
		p.DropRepliesTo("pay", 1)
		a.works(t, "hello")
		_, err := a.ask("pay 1")
		require.ErrorIs(t, err, io.EOF)
		b.works(t, "pay 2")
		require.Equal(t, "hello pay 1 pay 2", s.did())
	})
	t.Run("stops dropping", func(t *testing.T) {
		_, p := start(t)
		p.DropReplies(5)
		p.DropReplies(0)
		dial(t, p).works(t, "1")
	})
	t.Run("swallows requests, and connections stay open", func(t *testing.T) {
		s, p := start(t)
		a := dial(t, p)
		a.works(t, "1")
		p.BlackHole(true)
		b := dial(t, p)
		for _, conn := range []client{a, b} {
			require.NoError(t, conn.SetDeadline(time.Now().Add(50*time.Millisecond)))
			_, err := conn.ask("2")
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		}
		require.Equal(t, "1", s.did())
		p.BlackHole(false)
		dial(t, p).works(t, "3")
	})
	t.Run("swallows replies", func(t *testing.T) {
		s, p := start(t)
		s.replies = make(chan struct{})
		a := dial(t, p)
		_, err := fmt.Fprintln(a, "1")
		require.NoError(t, err)
		require.Eventually(t, func() bool { return s.did() == "1" }, 10*time.Second, time.Millisecond)
		p.BlackHole(true)
		close(s.replies)
		require.NoError(t, a.SetDeadline(time.Now().Add(50*time.Millisecond)))
		_, err = a.replies.ReadByte()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
	t.Run("cuts connections", func(t *testing.T) {
		_, p := start(t)
		a, b := dial(t, p), dial(t, p)
		a.works(t, "1")
		b.works(t, "2")
		p.Cut()
		for _, conn := range []client{a, b} {
			_, err := conn.replies.ReadByte()
			require.ErrorIs(t, err, io.EOF)
		}
		dial(t, p).works(t, "3")
	})
	t.Run("cuts clients when there is no server", func(t *testing.T) {
		s, p := start(t)
		require.NoError(t, s.Close())
		_, err := dial(t, p).replies.ReadByte()
		require.ErrorIs(t, err, io.EOF)
	})
	t.Run("counts connections that are open", func(t *testing.T) {
		_, p := start(t)
		a := dial(t, p)
		a.works(t, "1")
		require.Equal(t, 1, p.Connections())
		require.NoError(t, a.Close())
		require.Eventually(t, func() bool { return p.Connections() == 0 }, 10*time.Second, time.Millisecond)
	})
	t.Run("that is closed cuts all and accepts none", func(t *testing.T) {
		_, p := start(t)
		a := dial(t, p)
		a.works(t, "1")
		require.NoError(t, p.Close())
		_, err := a.replies.ReadByte()
		require.ErrorIs(t, err, io.EOF)
		_, err = net.Dial("tcp", p.Addr())
		require.Error(t, err)
		require.NoError(t, p.Close(), "again")
		require.Zero(t, p.Connections())
	})
}
