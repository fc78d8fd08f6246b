//go:build darwin || linux

package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// pgbouncerConfig is all that a pgbouncer in transaction mode needs. Its arguments: the server's port, its user, and
// the port to listen on.
const pgbouncerConfig = `[databases]
* = host=127.0.0.1 port=%d user=%s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
`

// A PgBouncer is a pgbouncer in transaction mode in front of a [Postgres]: each transaction of a client is carried
// out by another connection to the server, so that nothing of a session lasts.
type PgBouncer struct {
	dir     string
	port    int
	process *Process
}

// StartPgBouncer starts one. Close it when it is no longer needed, before p.
func StartPgBouncer(p *Postgres) (*PgBouncer, error) {
	program, err := Binary("pgbouncer", "pgbouncer", "pgbouncer")
	if err != nil {
		return nil, err
	}
	dir, err := serviceDir("idem-pgbouncer-")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{dir: dir}
	var errs []error
	for range startTries {
		if err = b.start(program, p.port); err == nil {
			return b, nil
		}
		errs = append(errs, err) // another process may have taken the port
	}
	return nil, errors.Join(append(errs, b.Close())...)
}

func (b *PgBouncer) start(program string, server int) error {
	var err error
	if b.port, err = FreePort(); err != nil {
		return err
	}
	config := filepath.Join(b.dir, "pgbouncer.ini")
	// It holds no secret, and whom pgbouncer runs as must be able to read it.
	text := fmt.Sprintf(pgbouncerConfig, server, postgresUser, b.port)
	if err = os.WriteFile(config, []byte(text), 0o644); err != nil { //nolint:gosec // see above
		return fmt.Errorf("testserver: %w", err)
	}
	b.process, err = Start(asService(exec.Command(program, config), b.dir), func(ctx context.Context) error {
		return postgresReady(ctx, b.Addr())
	})
	return err
}

// URL returns the address in the form that clients take.
func (b *PgBouncer) URL() string { return PostgresURLAt(b.Addr()) }

// Addr returns host and port.
func (b *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// Close ends it and removes its folder.
func (b *PgBouncer) Close() error {
	var err error
	if b.process != nil {
		err = b.process.Kill()
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}
