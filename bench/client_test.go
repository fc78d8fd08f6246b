package bench_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// client posts payments on a connection that is kept alive. It is the same for every server, and does as
// little as a client can: client and server share the processors, and net/http's client alone needs more
// of them than a server. It understands only answers with a Content-Length.
type client struct {
	conn    net.Conn
	in      *bufio.Reader
	request []byte
	key     []byte // within request
}

func dial(tb testing.TB, address string) *client {
	conn, err := net.Dial("tcp", address)
	require.NoError(tb, err)
	start := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s: ",
		path, address, contentType, len(payment), keyField)
	c := &client{conn: conn, in: bufio.NewReader(conn)}
	c.request = append(append(start, newKey()...), "\r\n\r\n"...)
	c.request = append(c.request, payment...)
	c.key = c.request[len(start):][:keyLength]
	return c
}

func (c *client) close() { _ = c.conn.Close() }

// post sends the request whose key has the number, and fails unless it gets the answer to it.
func (c *client) post(number int) error {
	setKey(c.key, number)
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	status, length, err := c.readHead()
	if err != nil {
		return err
	}
	body, err := c.in.Peek(length)
	if err != nil {
		return err
	}
	if err = checkAnswer(c.key, status, body); err != nil {
		return err
	}
	_, err = c.in.Discard(length)
	return err
}

// readHead reads up to the body.
func (c *client) readHead() (status, length int, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, err
	}
	if len(line) < len("HTTP/1.1 201") {
		return 0, 0, fmt.Errorf("not a status line: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, err
	}
	length = -1
	const field = "Content-Length:"
	for {
		line, err = c.in.ReadSlice('\n')
		switch {
		case err != nil:
			return 0, 0, err
		case len(line) == len("\r\n") && length < 0:
			return 0, 0, errors.New("an answer without Content-Length")
		case len(line) == len("\r\n"):
			return status, length, nil
		case len(line) > len(field) && bytes.EqualFold(line[:len(field)], []byte(field)):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(field):]))); err != nil {
				return 0, 0, err
			}
		}
	}
}
