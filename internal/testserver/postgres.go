//go:build darwin || linux

package testserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// postgresUser is the superuser of a private server, who needs no password.
	postgresUser = "idem"

	// startTries is how often a server is started that does not come up: its port may have been taken meanwhile,
	// or processes of a server that was killed may still be about to end.
	startTries = 10

	startPause = 300 * time.Millisecond // between these tries
)

// A PostgresConfig says how a private Postgres server runs. The zero value is what most tests want.
type PostgresConfig struct {
	// Fsync makes commits durable through a crash of the machine, as in production, which costs most of what a
	// commit costs. A crash of the server alone loses nothing without it either.
	Fsync bool

	// Settings are further lines of postgresql.conf, such as "max_connections=50".
	Settings []string
}

// A Postgres is a private Postgres server on a loopback port, with its data in a temporary folder.
type Postgres struct {
	cfg      PostgresConfig
	dir      string
	port     int
	postgres string // path of the program
	process  *Process
}

// PostgresURL returns the URL of a database for tests, and what ends it. It is the database of the environment
// variable DATABASE_URL if that is set, in which tests should touch nothing but a schema of their own; else it is on
// a private server.
func PostgresURL() (url string, end func() error, err error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		return url, func() error { return nil }, nil
	}
	p, err := StartPostgres(PostgresConfig{})
	if err != nil {
		return "", nil, err
	}
	return p.URL(), p.Close, nil
}

// StartPostgres starts a server of its own. Close it when it is no longer needed.
func StartPostgres(cfg PostgresConfig) (*Postgres, error) {
	initdb, err := Binary("initdb", "postgresql", "postgresql@17")
	if err != nil {
		return nil, err
	}
	postgres, err := Binary("postgres", "postgresql", "postgresql@17")
	if err != nil {
		return nil, err
	}
	dir, err := serviceDir("idem-postgres-")
	if err != nil {
		return nil, err
	}
	p := &Postgres{cfg: cfg, dir: dir, postgres: postgres}
	// The encoding is what matters for keys. The locale must be one that every machine has.
	init := exec.Command(initdb, "--pgdata="+p.data(), "--username="+postgresUser, "--auth=trust",
		"--encoding=UTF8", "--no-locale", "--no-sync")
	if output, err := asService(init, dir).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("testserver: %s: %w: %s", initdb, err, output), p.Close())
	}
	if err := p.Start(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// URL returns the address in the form that clients take.
func (p *Postgres) URL() string { return PostgresURLAt(p.Addr()) }

// PostgresURLAt returns the URL of a private server that is reached through another address, a proxy's.
func PostgresURLAt(addr string) string {
	return fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable", postgresUser, addr)
}

// Addr returns host and port. They stay as they are when the server is started again.
func (p *Postgres) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// Start starts a server that was stopped or killed, and waits until it takes connections.
func (p *Postgres) Start() error {
	moves := p.port == 0 // the first time any port will do
	var errs []error
	for range startTries {
		if moves {
			port, err := FreePort()
			if err != nil {
				return err
			}
			p.port = port
		}
		process, err := Start(p.command(), p.ready)
		if err == nil {
			p.process = process
			return nil
		}
		errs = append(errs, err)
		time.Sleep(startPause)
	}
	return fmt.Errorf("testserver: Postgres did not start in %d tries: %w", startTries, errors.Join(errs...))
}

// command is the server's command line. There is no socket in the file system, so that nothing is left of a
// server that is killed.
func (p *Postgres) command() *exec.Cmd {
	fsync := "off"
	if p.cfg.Fsync {
		fsync = "on"
	}
	args := []string{"-D", p.data()}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(p.port), "unix_socket_directories=",
		"max_connections=200", "shared_buffers=128MB", "max_wal_size=2GB",
		"fsync=" + fsync, "full_page_writes=" + fsync,
	}, p.cfg.Settings...) {
		args = append(args, "-c", setting)
	}
	return asService(exec.Command(p.postgres, args...), p.dir)
}

// Output returns the end of the server's log.
func (p *Postgres) Output() string { return p.process.Output() }

// Stop stops the server in an orderly way. It does not wait for clients to leave.
func (p *Postgres) Stop() error { return p.end(syscall.SIGINT) }

// Kill ends the server with SIGKILL, as a crash does.
func (p *Postgres) Kill() error { return p.process.Kill() }

// Close ends the server and removes its folder.
func (p *Postgres) Close() error {
	var err error
	if p.process != nil {
		err = p.end(syscall.SIGQUIT) // at once, but leaving no shared memory behind, as SIGKILL would
	}
	// Child processes of a server that was killed write for some milliseconds more.
	for range startTries {
		if os.RemoveAll(p.dir) == nil {
			return err
		}
		time.Sleep(startPause)
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// end sends sig, which is one that ends a Postgres server within moments. SIGTERM, which [Process.Stop] sends, would
// wait for the clients to leave.
func (p *Postgres) end(sig syscall.Signal) error {
	if err := p.process.signal(sig); err != nil {
		return err
	}
	select {
	case <-p.process.Done():
		return nil
	case <-time.After(stopTimeout):
		return errors.Join(fmt.Errorf("testserver: Postgres did not end on %v and was killed", sig), p.process.Kill())
	}
}

// ready asks for a connection and is content when it is granted: a server that still starts, or recovers, takes
// connections and refuses to work.
func (p *Postgres) ready(ctx context.Context) error { return postgresReady(ctx, p.Addr()) }

// postgresReady speaks the first words of Postgres' protocol, version 3, with the server at addr.
func postgresReady(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err = conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	hello := binary.BigEndian.AppendUint32(nil, 3<<16)
	hello = append(hello, "user\x00"+postgresUser+"\x00database\x00postgres\x00\x00"...)
	hello = append(binary.BigEndian.AppendUint32(nil, uint32(len(hello)+4)), hello...)
	if _, err = conn.Write(hello); err != nil {
		return err
	}
	answer := make([]byte, 256)
	n, err := io.ReadAtLeast(conn, answer, 9)
	if err != nil {
		return err
	}
	if answer[0] != 'R' { // a request to authenticate, which "trust" makes mean "go ahead"
		return fmt.Errorf("answered %q", answer[:n])
	}
	return nil
}

// serviceUser is whom servers run as that refuse to be run by root. It is nil for everybody else.
func serviceUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nobody else is what Cmd takes nil for
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errU := strconv.ParseUint(u.Uid, 10, 32)
		gid, errG := strconv.ParseUint(u.Gid, 10, 32)
		if errU == nil && errG == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("testserver: Postgres refuses to be run by root, and there is no user postgres or nobody to run it as")
}

// serviceDir makes a temporary folder that belongs to whom the server runs as.
func serviceDir(pattern string) (string, error) {
	who, err := serviceUser()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", fmt.Errorf("testserver: %w", err)
	}
	if who != nil {
		if err := os.Chown(dir, int(who.Uid), int(who.Gid)); err != nil {
			return "", errors.Join(fmt.Errorf("testserver: %w", err), os.RemoveAll(dir))
		}
	}
	return dir, nil
}

// asService has cmd run as who owns dir, and in it: that user may not be let into ours. That there is such a user was
// seen when dir was made.
func asService(cmd *exec.Cmd, dir string) *exec.Cmd {
	cmd.Dir = dir
	if who, err := serviceUser(); err == nil && who != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	}
	return cmd
}
