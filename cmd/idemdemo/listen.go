package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// patient is how long a server that shuts down waits for the handlers that still run: longer than the
// slowest payment, which is charged already or would be charged twice by its retry after a restart.
const patient = slowest + 10*time.Second

// listening is a server of one handler at one address. Its owner calls shut, once.
type listening struct {
	url    string
	server *http.Server
	served chan error // what Serve returned
}

// listen serves h at addr until shut is called. Port 0 takes a free one, which url then names.
func listen(addr string, h http.Handler) (*listening, error) {
	socket, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listening{
		url: "http://" + socket.Addr().String(),
		// No time limit for answers: events go on for ever, and a payment may take a minute.
		server: &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second},
		served: make(chan error, 1),
	}
	go func() { l.served <- l.server.Serve(socket) }()
	return l, nil
}

// shut takes no more requests, waits for the handlers, and returns when nothing of the server runs.
func (l *listening) shut() error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	err := l.server.Shutdown(ctx)
	if served := <-l.served; !errors.Is(served, http.ErrServerClosed) {
		return errors.Join(err, served)
	}
	return err
}
