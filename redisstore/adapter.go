package redisstore

import (
	"context"
	"time"
)

// An Adapter is a client library as a [Store] uses it. Its methods may be called by any number of goroutines.
// The client belongs to the user: nothing here configures or closes it.
type Adapter interface {
	Runner

	// Pinned calls fn with a single connection to the server that has the key, and returns fn's error or
	// that of connecting. The connection may not be replaced by another one while fn uses it. Neither Pinned nor
	// the Conn needs to heed ctx: the store does, and leaves them to end by themselves.
	Pinned(ctx context.Context, key string, fn func(Conn) error) error

	// Subscribe listens to one channel until ctx is done or the connection is lost, and returns an error
	// in both cases. It calls ready each time the server has confirmed the subscription, and message with
	// the text of each message, one after the other.
	Subscribe(ctx context.Context, channel string, ready func(), message func(text string)) error

	// Info returns what INFO says about memory on one of the servers.
	Info(ctx context.Context) (string, error)
}

// A Runner runs scripts.
type Runner interface {
	// Run runs a script on the server that has the key and returns its reply, which is one string. A server
	// that has not seen the script is sent its text. When a connection is lost Run may send the
	// script again: scripts recognise a caller that comes twice. An error of the server has the
	// server's text in its own. When the deadline of ctx passes Run returns, and when ctx is cancelled it does
	// so within the client's own timeouts; the script may be on its way then. A ctx may have a deadline and no
	// channel that tells of it.
	Run(ctx context.Context, script *Script, key string, args ...string) (string, error)
}

// A Conn is one connection.
type Conn interface {
	Runner

	// Wait blocks until what this connection wrote has reached so many replicas, or the timeout is over,
	// and returns how many it has reached. It is the command WAIT.
	Wait(ctx context.Context, replicas int, timeout time.Duration) (int, error)
}
