package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/testserver"
	"github.com/stretchr/testify/require"
)

// startService serves a service on a free port until the test ends, and returns its URL.
func startService(t *testing.T, wait time.Duration) string {
	t.Helper()
	e, err := idem.New(idem.Config{Shards: 2, Lease: serveLease})
	require.NoError(t, err)
	closing := make(chan struct{})
	h, err := (&service{wait: wait}).handler(e, newAPI(), closing)
	require.NoError(t, err)
	server, err := listen("127.0.0.1:0", h)
	require.NoError(t, err)
	t.Cleanup(func() {
		close(closing)
		require.NoError(t, server.shut())
		require.NoError(t, e.Close())
	})
	return server.url
}

// An answer is a response whose body was read.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request, with a key unless it is empty, and returns the answer.
func send(t *testing.T, method, url, key, body string) answer {
	t.Helper()
	a, err := trySend(t.Context(), method, url, key, body)
	require.NoError(t, err)
	return a
}

// sendLater is send in a goroutine; the channel gives the body, or the error.
func sendLater(t *testing.T, method, url, key, body string) <-chan string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		a, err := trySend(t.Context(), method, url, key, body)
		if err != nil {
			a.body = err.Error()
		}
		got <- a.body
	}()
	return got
}

func trySend(ctx context.Context, method, url, key, body string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	content, err := bodyOf(resp)
	return answer{resp.StatusCode, resp.Header, content}, err
}

// TestGuide has a shell and curl do what the guide tells people to type, and gets what it says they will.
func TestGuide(t *testing.T) {
	_, err := testserver.Binary("curl", "curl", "curl")
	require.NoError(t, err)
	url := startService(t, 0)
	want := []struct {
		status   int
		replayed string
	}{{201, ""}, {201, "true"}, {422, ""}, {400, ""}, {201, ""}, {201, ""}, {200, ""}, {200, ""}}
	commands := regexp.MustCompile(`(?m)^curl .*$`).FindAllString(strings.ReplaceAll(guide, "URL", url), -1)
	require.Len(t, commands, len(want))
	for i, command := range commands {
		command = strings.Replace(command, "take=20s", "take=0s", 1) + " -i -sS --noproxy '*'"
		printed, err := exec.CommandContext(t.Context(), "sh", "-c", command).Output()
		require.NoError(t, err, command)
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(printed)), nil)
		require.NoError(t, err, "%s: %s", command, printed)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want[i].status, resp.StatusCode, "%s: %s", command, printed)
		require.Equal(t, want[i].replayed, resp.Header.Get("Idempotency-Replayed"), command)
	}
}

// TestAPI checks what the guide does not show.
func TestAPI(t *testing.T) {
	t.Parallel() // it waits for slow payments
	const payment = `{"order":"A-1","cents":4200}`

	t.Run("a duplicate of a running payment is told 409", func(t *testing.T) {
		url := startService(t, 0)
		first := sendLater(t, http.MethodPost, url+"/payments?take=2500ms", "k", payment)
		waitForSnapshot(t, url, func(s snapshot) bool { return s.InProgress == 1 })
		second := send(t, http.MethodPost, url+"/payments?take=2500ms", "k", payment)
		require.Equal(t, http.StatusConflict, second.status, second.body)
		require.Contains(t, second.body, "in_progress")
		require.Regexp(t, "^([1-9]|10)$", second.header.Get("Retry-After"), "what is left of ten seconds")
		require.Contains(t, <-first, `"order":"A-1"`)
	})

	t.Run("captures are charged once a key, and only of what was paid", func(t *testing.T) {
		url := startService(t, 0)
		early := send(t, http.MethodPost, url+"/orders/A-1/capture", "c", "")
		require.Equal(t, http.StatusNotFound, early.status)
		send(t, http.MethodPost, url+"/payments?take=0s", "p", payment)
		made := send(t, http.MethodPost, url+"/orders/A-1/capture", "c", "")
		require.Equal(t, http.StatusCreated, made.status, "the answer 404 must not be recorded")
		require.Equal(t, made.body, send(t, http.MethodPost, url+"/orders/A-1/capture", "c", "").body)

		var charges []charge
		require.NoError(t, json.Unmarshal([]byte(send(t, http.MethodGet, url+"/ledger", "", "").body), &charges))
		require.Len(t, charges, 2)
		require.Equal(t, "capture", charges[0].Kind)
		require.Equal(t, 4200, charges[0].Cents)
		require.Equal(t, made.body, send(t, http.MethodGet, url+made.header.Get("Location"), "", "").body)
	})

	t.Run("a payment is at work until it is done", func(t *testing.T) {
		err := withEngine(idem.Config{}, func(e *idem.Engine) error {
			payments := newAPI()
			h, err := (&service{}).handler(e, payments, nil)
			require.NoError(t, err)
			r := httptest.NewRequest(http.MethodPost, "/payments?take=0s", strings.NewReader(payment))
			r.Header.Set("Idempotency-Key", "k")
			h.ServeHTTP(httptest.NewRecorder(), r)
			require.Equal(t, 1, payments.books.total())
			require.Empty(t, payments.atWork(listed))
			return nil
		})
		require.NoError(t, err)
	})

	t.Run("bad payments are refused", func(t *testing.T) {
		url := startService(t, 0)
		for target, body := range map[string]string{
			"/payments":              `{"order":"A-1"}`,
			"/payments?n=2":          `{"order":"","cents":5}`,
			"/payments?n=3":          `{"order":"A-1","cents":100000001}`,
			"/payments?n=4":          `{"order":"A-1","cents":5,"currency":"EUR"}`,
			"/payments?n=5":          `order=A-1`,
			"/payments?n=6":          `{"order":"` + strings.Repeat("x", 65) + `","cents":5}`,
			"/payments?take=61s":     payment,
			"/payments?take=-1s":     payment,
			"/payments?take=forever": payment,
		} {
			got := send(t, http.MethodPost, url+target, target, body)
			require.Equal(t, http.StatusBadRequest, got.status, "%s %s: %s", target, body, got.body)
		}
		require.Equal(t, "[]\n", send(t, http.MethodGet, url+"/ledger", "", "").body)
		for _, id := range []string{"0", "1", "x"} {
			require.Equal(t, http.StatusNotFound, send(t, http.MethodGet, url+"/payments/"+id, "", "").status, id)
		}
	})
}

// waitForSnapshot reads the page's events until one is as wanted, and returns that.
func waitForSnapshot(t *testing.T, url string, wanted func(snapshot) bool) snapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var s snapshot
		require.NoError(t, json.Unmarshal([]byte(data), &s))
		if wanted(s) {
			return s
		}
	}
	require.FailNow(t, "the events ended without the one that was waited for", "%v", lines.Err())
	return snapshot{}
}

// TestPage checks what can be told without a browser; the module verify has a test with one.
func TestPage(t *testing.T) {
	t.Parallel() // it waits for slow payments
	t.Run("needs nothing from outside, and its script knows its parts", func(t *testing.T) {
		url := startService(t, 0)
		page := send(t, http.MethodGet, url+"/", "", "")
		require.Equal(t, "text/html; charset=utf-8", page.header.Get("Content-Type"))
		require.Contains(t, page.header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self'")
		html, js := page.body, send(t, http.MethodGet, url+"/page.js", "", "").body
		for _, outside := range regexp.MustCompile(`https?://[^"' ]+`).FindAllString(html+js, -1) {
			require.Equal(t, "http://www.w3.org/2000/svg", outside, "only the name of SVG may look like an address")
		}
		require.Equal(t, int(outcomes), strings.Count(html, "<tr data-o="))
		for _, used := range regexp.MustCompile(`(?:\$|fill)\("(\w+)"`).FindAllStringSubmatch(js, -1) {
			require.Contains(t, html, `id="`+used[1]+`"`)
		}
	})

	t.Run("events show what runs, what was charged and what was saved", func(t *testing.T) {
		url := startService(t, 0)
		s := waitForSnapshot(t, url, func(snapshot) bool { return true })
		require.Empty(t, s.Ledger)
		require.Len(t, s.Shards, 2)

		const payment = `{"order":"A-1","cents":1}`
		send(t, http.MethodPost, url+"/payments?take=0s", "k", payment)
		send(t, http.MethodPost, url+"/payments?take=0s", "k", payment)
		send(t, http.MethodPost, url+"/payments", "", payment)
		done := sendLater(t, http.MethodPost, url+"/payments?take=2500ms", "slow", payment)
		s = waitForSnapshot(t, url, func(s snapshot) bool { return len(s.Running) == 1 })
		require.Equal(t, "slow", s.Running[0].Key)
		require.InDelta(t, s.Running[0].FullMs, s.Running[0].AgeMs+s.Running[0].LeaseMs, 1500)
		require.Equal(t, 1, s.Charges)
		require.EqualValues(t, 1, s.Saved)
		require.Equal(t, counts{ran: 1, replayed: 1, refused: 1}, s.Total)
		require.Equal(t, 2, s.Records)
		require.Equal(t, "A-1", s.Ledger[0].Order)
		<-done
		waitForSnapshot(t, url, func(s snapshot) bool { return len(s.Running) == 0 && s.Charges == 2 })
	})
}

// lineWriter sends what is written to it, line by line, to a channel.
type lineWriter struct {
	buf   bytes.Buffer
	lines chan string
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.buf.Write(p)
	for {
		line, rest, found := bytes.Cut(w.buf.Bytes(), []byte("\n"))
		if !found {
			return len(p), nil
		}
		w.lines <- string(line)
		w.buf.Next(w.buf.Len() - len(rest))
	}
}

// TestServe runs the command as a user does: start, look, pay, Ctrl-C.
func TestServe(t *testing.T) {
	t.Parallel() // it waits for slow payments
	ctx, interrupt := context.WithCancel(t.Context())
	out := &lineWriter{lines: make(chan string, 100)}
	var stderr bytes.Buffer
	code := make(chan int)
	go func() { code <- run(ctx, []string{"serve", "-addr", "127.0.0.1:0"}, out, &stderr) }()
	url := strings.TrimPrefix(<-out.lines, "payments API: ")

	paid := sendLater(t, http.MethodPost, url+"/payments?take=2500ms", "k", `{"order":"A-1","cents":1}`)
	waitForSnapshot(t, url, func(s snapshot) bool { return s.InProgress == 1 })
	events, err := http.Get(url + "/events") // a page that stays open
	require.NoError(t, err)
	defer func() { _ = events.Body.Close() }()

	interrupt()
	require.Contains(t, <-paid, `"order":"A-1"`, "a payment that runs is finished")
	require.Equal(t, exitOK, <-code, "%s", &stderr)
	require.Empty(t, stderr.String())
	close(out.lines)
	var last string
	for last = range out.lines {
	}
	require.Equal(t, "stopped; charges: 1, replays: 0", last)
}

// A payment that was made before a restart is not made after it, nor is its number given to another one.
func TestServeKeeps(t *testing.T) {
	file := filepath.Join(t.TempDir(), "records")
	const paid, other = `{"order":"A-1","cents":1}`, `{"order":"A-2","cents":1}`
	first, last := serveOnce(t, file, "records of earlier runs: 0", func(url string) string {
		return send(t, http.MethodPost, url+"/payments?take=0s", "k", paid).body
	})
	require.Equal(t, "stopped; charges: 1, replays: 0", last)
	second, last := serveOnce(t, file, "records of earlier runs: 1", func(url string) string {
		require.Contains(t, send(t, http.MethodPost, url+"/payments?take=0s", "l", other).body, `"id":2`)
		return send(t, http.MethodPost, url+"/payments?take=0s", "k", paid).body
	})
	require.Equal(t, first, second)
	require.Equal(t, "stopped; charges: 1, replays: 1", last, "those of the first run were in another ledger")
	require.NoError(t, os.WriteFile(file, []byte("scribbled over"), 0o600))
	for bad, complaint := range map[string]string{
		file: "idem: damaged snapshot", filepath.Join(file, "x"): "not a directory", t.TempDir(): "is a directory",
		filepath.Join(t.TempDir(), "missing", "x"): "no such file or directory",
	} {
		var stderr bytes.Buffer
		require.Equal(t, exitFailed, run(t.Context(), []string{"serve", "-addr", "127.0.0.1:0", "-keep", bad}, io.Discard, &stderr))
		require.Contains(t, stderr.String(), "-keep "+bad+": ")
		require.Contains(t, stderr.String(), complaint)
	}
}

// serveOnce runs the command with a file to keep, and returns what use did and the last line.
func serveOnce(t *testing.T, file, greeting string, use func(url string) string) (got, last string) {
	t.Helper()
	ctx, interrupt := context.WithCancel(t.Context())
	out := &lineWriter{lines: make(chan string, 100)}
	code := make(chan int)
	go func() { code <- run(ctx, []string{"serve", "-addr", "127.0.0.1:0", "-keep", file}, out, io.Discard) }()
	require.Equal(t, greeting, <-out.lines)
	got = use(strings.TrimPrefix(<-out.lines, "payments API: "))
	interrupt()
	require.Equal(t, exitOK, <-code)
	close(out.lines)
	for last = range out.lines {
	}
	return got, last
}

// Nothing begins while the server is shut: it might end after what is kept was written.
func TestServeBeginsNothingAtTheEnd(t *testing.T) {
	e, err := idem.New(idem.Config{})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	closing := make(chan struct{})
	h, err := (&service{}).handler(e, newAPI(), closing)
	require.NoError(t, err)
	close(closing)
	req := httptest.NewRequest(http.MethodPost, "/payments?take=0s", strings.NewReader(`{"order":"A-1","cents":1}`))
	req.Header.Set("Idempotency-Key", "k")
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, req)
	require.Equal(t, http.StatusServiceUnavailable, answer.Code)
	require.Zero(t, e.Len())
}
