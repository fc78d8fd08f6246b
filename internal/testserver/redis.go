package testserver

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// A Redis is a private Redis server on a port of its own, with its files in a temporary folder. Its methods must
// not be called at the same time.
type Redis struct {
	// Addr is the host and port where it listens. It stays the same over a restart.
	Addr string

	dir  string
	args []string
	*Process
}

// RedisURL returns the server for tests that need nothing but a server: what the environment's REDIS_URL names, or
// else a new private one. That one is returned too, for the caller to close it; it is nil for the other, which
// others may use as well.
func RedisURL() (url string, private *Redis, err error) {
	if url := os.Getenv("REDIS_URL"); url != "" {
		return url, nil, nil
	}
	private, err = StartRedis()
	if err != nil {
		return "", nil, err
	}
	return "redis://" + private.Addr, private, nil
}

// StartRedis starts a server. It saves nothing to disk, unless args say otherwise: they go to redis-server as they
// are and come last.
func StartRedis(args ...string) (*Redis, error) {
	dir, err := os.MkdirTemp("", "idem-redis-")
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	r := &Redis{dir: dir, args: args}
	// Somebody may take the port before the server does.
	for range 5 {
		var port int
		if port, err = FreePort(); err != nil {
			break
		}
		r.Addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if err = r.Start(); err == nil {
			return r, nil
		}
	}
	return nil, errors.Join(err, os.RemoveAll(dir))
}

// Start runs the server again after [Process.Stop] or [Process.Kill], with the same port and files.
func (r *Redis) Start() error {
	path, err := Binary("redis-server", "redis-server", "redis")
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return fmt.Errorf("testserver: %w", err)
	}
	args := []string{"--bind", host, "--port", port, "--dir", r.dir, "--daemonize", "no", "--save", "",
		"--repl-diskless-sync-delay", "0"} // by default it waits whether more replicas come
	p, err := Start(exec.Command(path, append(args, r.args...)...), func(ctx context.Context) error {
		return r.says(ctx, "PONG", "PING") // it may be loading its files
	})
	if err == nil {
		r.Process = p
	}
	return err
}

// StartRedisReplica starts a server that copies from the one at addr, and waits until it has caught up.
func StartRedisReplica(addr string, args ...string) (*Redis, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("testserver: %w", err)
	}
	r, err := StartRedis(append([]string{"--replicaof", host + " " + port}, args...)...)
	if err != nil {
		return nil, err
	}
	if err = r.catchUp(&Redis{Addr: addr}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// catchUp waits until a replica has what its primary has.
func (r *Redis) catchUp(primary *Redis) error {
	return r.await(func(ctx context.Context) error {
		// The primary may take up to a second to hear of what the replica knows already.
		return cmp.Or(
			r.says(ctx, "master_link_status:up", "INFO", "replication"),
			primary.says(ctx, "state=online", "INFO", "replication"),
		)
	})
}

// Close ends the server and removes its files.
func (r *Redis) Close() error { return errors.Join(r.Kill(), os.RemoveAll(r.dir)) }

// Do sends one command on a connection of its own and returns the reply: a string or a number as it is, an array as
// its elements with spaces between. It is for a test's arrangements.
func (r *Redis) Do(ctx context.Context, command ...string) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", r.Addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var request strings.Builder
	fmt.Fprintf(&request, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err = io.WriteString(conn, request.String()); err != nil {
		return "", err
	}
	reply, err := readReply(bufio.NewReader(conn))
	if err != nil {
		return "", fmt.Errorf("testserver: redis %s: %w", command[0], err)
	}
	return reply, nil
}

// says returns an error unless the reply to a command contains text.
func (r *Redis) says(ctx context.Context, text string, command ...string) error {
	got, err := r.Do(ctx, command...)
	if err == nil && !strings.Contains(got, text) {
		err = fmt.Errorf("testserver: redis does not say %s, but:\n%s", text, got)
	}
	return err
}

// readReply reads one value of the protocol RESP2.
func readReply(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '-':
		return "", errors.New(rest)
	case '+', ':':
		return rest, nil
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 0 {
		return "", err // no value is read as no bytes
	}
	if kind == '$' {
		value := make([]byte, n+len("\r\n"))
		_, err = io.ReadFull(in, value)
		return string(value[:n]), err
	}
	values := make([]string, n)
	for i := range values {
		if values[i], err = readReply(in); err != nil {
			return "", err
		}
	}
	return strings.Join(values, " "), nil
}

// StartRedisCluster starts a cluster of so many primaries, each with its share of the slots, and waits until all of
// them say that it works. The caller closes each.
func StartRedisCluster(primaries int, args ...string) ([]*Redis, error) {
	return startCluster(primaries, primaries, args)
}

// StartRedisClusterWithReplicas is [StartRedisCluster] with a replica for each of the primaries, in the same order. The
// caller closes each server.
func StartRedisClusterWithReplicas(primaries int, args ...string) (leaders, replicas []*Redis, err error) {
	cluster, err := startCluster(2*primaries, primaries, args)
	if err != nil {
		return nil, nil, err
	}
	return cluster[:primaries], cluster[primaries:], nil
}

// startCluster starts servers of which the first are primaries, and the others replicas of one each.
func startCluster(nodes, primaries int, args []string) (cluster []*Redis, err error) {
	defer func() {
		if err != nil {
			for _, node := range cluster {
				err = errors.Join(err, node.Close())
			}
			cluster = nil
		}
	}()
	args = append([]string{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}, args...)
	for range nodes {
		var node *Redis
		if node, err = startNode(args); err != nil {
			return cluster, err
		}
		cluster = append(cluster, node)
	}
	if err = join(cluster, primaries); err != nil {
		return cluster, err
	}
	for i, replica := range cluster[primaries:] {
		if err = replica.follow(cluster[i]); err != nil {
			return cluster, err
		}
	}
	return cluster, nil
}

// follow makes a server of a cluster a replica of another one.
func (r *Redis) follow(primary *Redis) error {
	ctx := context.Background()
	id, err := primary.Do(ctx, "CLUSTER", "MYID")
	if err != nil {
		return err
	}
	if _, err = r.Do(ctx, "CLUSTER", "REPLICATE", id); err != nil {
		return err
	}
	return r.catchUp(primary)
}

// startNode starts a server of a cluster. Its second port, for the other servers, must be free too.
func startNode(args []string) (*Redis, error) {
	bus, err := FreePort()
	if err != nil {
		return nil, err
	}
	return StartRedis(append(slices.Clone(args), "--cluster-port", strconv.Itoa(bus))...)
}

// join makes a cluster of servers, of which the first share the slots.
func join(cluster []*Redis, primaries int) error {
	const slots = 16384
	ctx := context.Background()
	first := cluster[0]
	for i, node := range cluster {
		if i < primaries {
			from, to := i*slots/primaries, (i+1)*slots/primaries-1
			if _, err := node.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(from), strconv.Itoa(to)); err != nil {
				return err
			}
		}
		if i == 0 {
			continue
		}
		host, port, err := net.SplitHostPort(node.Addr)
		if err != nil {
			return fmt.Errorf("testserver: %w", err)
		}
		bus := node.args[slices.Index(node.args, "--cluster-port")+1]
		if _, err := first.Do(ctx, "CLUSTER", "MEET", host, port, bus); err != nil {
			return err
		}
	}
	for _, node := range cluster {
		err := node.await(func(ctx context.Context) error {
			return cmp.Or(
				node.says(ctx, "cluster_state:ok", "CLUSTER", "INFO"),
				node.says(ctx, "cluster_known_nodes:"+strconv.Itoa(len(cluster)), "CLUSTER", "INFO"),
			)
		})
		if err != nil {
			return fmt.Errorf("%w\n%s", err, node.Output())
		}
	}
	return nil
}
