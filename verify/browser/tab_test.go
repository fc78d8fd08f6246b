//go:build browser

package browser

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait for the browser, which takes seconds to start on a busy machine.
const patience = time.Minute

// anyPort is an address with a port that is free.
const anyPort = "127.0.0.1:0"

// idemdemo is the path of the program under test, and chromium the context of the browser that shows its
// page, each time in a tab of its own. TestMain sets them.
var (
	idemdemo string
	chromium context.Context
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// runTests builds idemdemo, starts a Chromium with a fresh profile and runs the tests.
func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "idemdemo")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	idemdemo = filepath.Join(dir, "idemdemo")
	build := exec.Command("go", "build", "-o", idemdemo, "./cmd/idemdemo")
	build.Dir = filepath.Join("..", "..")
	if output, buildErr := build.CombinedOutput(); buildErr != nil {
		return 0, fmt.Errorf("%w: %s", buildErr, output)
	}

	names := []string{"chromium", "chromium-browser", "google-chrome"}
	i := slices.IndexFunc(names, func(name string) bool { _, lookErr := exec.LookPath(name); return lookErr == nil })
	if i < 0 {
		return 0, errors.New("no Chromium here; make browser installs it")
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(names[i]), chromedp.UserDataDir(filepath.Join(dir, "profile")),
		chromedp.NoSandbox, // it does not start as root otherwise, which CI may be
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))...)
	defer cancel()
	tab, cancel := chromedp.NewContext(ctx)
	defer cancel() // runs first, and waits for the browser to be gone
	if err = chromedp.Do(tab); err != nil {
		return 0, err
	}
	chromium = tab //nolint:fatcontext // set once, before the tests run
	return m.Run(), nil
}

// A server is an "idemdemo serve" in a process of its own.
type server struct {
	url  string
	stop func() // kills it; called at the end of the test at the latest
}

// serve lets idemdemo serve on addr.
func serve(t *testing.T, addr string) *server {
	t.Helper()
	process := exec.CommandContext(t.Context(), idemdemo, "serve", "-wait", "0s", "-addr", addr)
	stdout, err := process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, process.Start())
	stop := sync.OnceFunc(func() {
		_ = process.Process.Kill() // it may have ended
		_ = process.Wait()         // that it was killed is no news
	})
	t.Cleanup(stop)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "payments API: ")
	require.True(t, ok, line)
	return &server{url: url, stop: stop}
}

// pay sends a payment; what is answered, if anything, is for the page to show. It may be called in a
// goroutine.
func (s *server) pay(t *testing.T, query, key, payment string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/payments?"+query, strings.NewReader(payment))
	if err != nil {
		t.Error(err)
		return
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}

// readEvents reads n of the events that the page gets, which takes n-1 of the server's beats.
func (s *server) readEvents(t *testing.T, n int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/events", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for n > 0 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "data: ") {
			n--
		}
	}
	require.Zero(t, n, "the events ended: %v", lines.Err())
}

// A window is what the page is shown in.
type window struct {
	width, height int64
	scheme        string // light or dark
}

var (
	desktop = window{1280, 900, "light"}
	phone   = window{390, 844, "light"}
)

func (w window) dark() window {
	w.scheme = "dark"
	return w
}

func (w window) String() string { return fmt.Sprintf("%d-%s", w.width, w.scheme) }

// A tab is one page that is open. Its methods fail the test.
type tab struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // it is how chromedp names a tab

	mu    sync.Mutex
	asked []string // the addresses that the page asked for
	said  []string // what the console said
}

// open loads the page of the server at url and returns once it is live.
func open(t *testing.T, url string, w window) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium)
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Listen(p.ctx, p.listen))
	call(p, network.Enable, network.EnableParams{})
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: w.width, Height: w.height, DeviceScaleFactor: 1, Mobile: w.width < desktop.width,
	})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: w.scheme}},
	})
	p.do(chromedp.Navigate(url + "/"))
	p.until(`$("link").textContent === "live"`)
	return p
}

// listen notes what the page asks for and what the console says. chromedp calls it from one goroutine.
func (p *tab) listen(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.asked = append(p.asked, e.Request.URL)
	case *runtime.EventExceptionThrown:
		p.said = append(p.said, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		p.said = append(p.said, e.Entry.Text)
	}
}

// heard returns the addresses that the page asked for so far, and what the console said.
func (p *tab) heard() (asked, said []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.asked), slices.Clone(p.said)
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, steps...))
}

// press clicks one of the buttons that send a payment.
func (p *tab) press(what string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS("button[data-do=" + what + "]")))
}

// text returns the text of the element with the id.
func (p *tab) text(id string) string {
	p.t.Helper()
	return eval[string](p, "$('"+id+"').textContent")
}

// until waits for a JavaScript expression to be true.
func (p *tab) until(expression string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[bool](scoped(expression),
		chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(patience)))
	require.NoError(p.t, err, "%s\nanswer: %s", expression, p.text("answer"))
}

// eval returns the value of a JavaScript expression, which must come soon.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](scoped(expression)))
	require.NoError(p.t, err, expression)
	return value
}

// scoped gives an expression the function $, which finds an element by its id.
func scoped(expression string) string {
	return "(() => { const $ = id => document.getElementById(id); return " + expression + "; })()"
}

func call[P, R any](p *tab, command cdp.Command[P, R], params P) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, command, params)
	require.NoError(p.t, err)
}
