package fasthttpidem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/httpidem"
)

func TestManyClientsWithOneKey(t *testing.T) {
	const clients = 64
	engine := newEngine(t, idem.Config{})
	var runs, replays atomic.Int32
	server := startServer(t, guardWith(t, engine, fasthttpidem.Config{Wait: time.Minute})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		eventually(t, func() bool { return engine.Stats().Waiting == clients-1 }, "the wait")
		_, _ = ctx.WriteString("paid")
	})))
	var all sync.WaitGroup
	for range clients {
		w := server.dial(t)
		all.Go(func() {
			_, err := io.WriteString(w.Conn, postText("k", "body"))
			check(t, err)
			a := w.answer()
			assert.Equal(t, "paid", a.body)
			if a.get("Idempotency-Replayed") == "true" {
				replays.Add(1)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1, runs.Load())
	require.EqualValues(t, clients-1, replays.Load())
}

// A slowStore takes its time.
type slowStore struct{ idem.Store }

func (s slowStore) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	time.Sleep(50 * time.Millisecond)
	return s.Store.Begin(ctx, req)
}

func (s slowStore) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	time.Sleep(50 * time.Millisecond)
	return s.Store.Complete(ctx, c, resp)
}

// losing returns a middleware that loses answers of the handlers inside, by an error or with the connection.
func losing(next fasthttp.RequestHandler) fasthttp.RequestHandler {
	var arrivals atomic.Int32
	return func(ctx *fasthttp.RequestCtx) {
		next(ctx)
		switch arrivals.Add(1) % 8 {
		case 0:
			ctx.Error("bad gateway", http.StatusBadGateway)
		case 1:
			ctx.HijackSetNoResponse(true)
			ctx.Hijack(func(c net.Conn) { _ = c.Close() })
		}
	}
}

// TestManyKeysWithDuplicates: clients that retry, with a Transport of package httpidem, a store on a slow network.
func TestManyKeysWithDuplicates(t *testing.T) { runManyKeys(t, 100) }

func TestHeavyManyKeysWithDuplicates(t *testing.T) { runManyKeys(t, 1000) }

func runManyKeys(t *testing.T, keys int) {
	const duplicates = 12
	runs := make([]atomic.Int32, keys)
	server := startServer(t, losing(guardWith(t, slowStore{newEngine(t, idem.Config{})}, fasthttpidem.Config{})(func(ctx *fasthttp.RequestCtx) {
		var key int
		_, err := fmt.Sscanf(string(ctx.Request.Body()), "payment %d", &key)
		check(t, err)
		runs[key].Add(1)
		_, _ = fmt.Fprintf(ctx, "paid %d", key)
	})))
	base := &http.Transport{MaxConnsPerHost: 200, MaxIdleConnsPerHost: 200}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: &httpidem.Transport{
		Base: base, MaxAttempts: 100, MinBackoff: 10 * time.Millisecond, MaxRetryAfter: 200 * time.Millisecond,
	}}
	var all sync.WaitGroup
	room := make(chan struct{}, 200)
	for i := range keys * duplicates {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			key := i / duplicates
			code, text := http.StatusConflict, ""
			for code == http.StatusConflict { // which the Transport takes for final when all is so slow that the rest of it is late
				var err error
				if code, text, err = pay(t.Context(), client, server, key); err != nil {
					t.Error(err)
					return
				}
			}
			assert.Equal(t, fmt.Sprint("paid ", key), text)
		})
	}
	all.Wait()
	for i := range runs {
		require.EqualValues(t, 1, runs[i].Load())
	}
}

// pay sends a payment, and returns status and body.
func pay(ctx context.Context, client *http.Client, server *testServer, key int) (code int, body string, err error) {
	req, err := http.NewRequestWithContext(httpidem.WithKey(ctx, fmt.Sprint("key-", key)), http.MethodPost,
		"http://"+server.addr+"/payments", strings.NewReader(fmt.Sprint("payment ", key)))
	if err != nil {
		return 0, "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), errors.Join(err, resp.Body.Close())
}

// textFor returns what a key is answered with, of many sizes: from nothing to more than buffers are kept for.
func textFor(key string, n int) string {
	return strings.Repeat(key, n*n*n%100_000/len(key))
}

// shown returns a text as an answer has it in body.
func shown(text string) string {
	if len(text) <= 4000 {
		return text
	}
	return fmt.Sprintf("%s... %d bytes %08x", text[:4000], len(text), crc32.ChecksumIEEE([]byte(text)))
}

// echoing answers with what the request's key is to be answered with, from memory of the request, as a stream or not.
func echoing(ctx *fasthttp.RequestCtx) {
	op, _ := fasthttpidem.FromContext(ctx)
	text := ctx.Request.Body()
	ctx.Response.Header.SetBytesV("X-Key", ctx.Request.Header.Peek("Idempotency-Key"))
	switch {
	case len(text)%3 == 0:
		ctx.SetBody(text)
	case len(text)%3 == 1:
		ctx.Response.SetBodyRaw(text)
	default:
		streaming(200, parts(string(text)))(ctx)
	}
	if op.Claim().Key != string(ctx.Request.Header.Peek("Idempotency-Key")) {
		ctx.Error("another key", http.StatusInternalServerError)
	}
}

// TestMemoryThatIsUsedAgain: fasthttp serves one request after the other with the same memory, and so does the middleware.
func TestMemoryThatIsUsedAgain(t *testing.T) {
	const clients, rounds = 8, 150
	engine := newEngine(t, idem.Config{})
	server := startServer(t, guardWith(t, engine, fasthttpidem.Config{})(echoing))
	var all sync.WaitGroup
	for client := range clients {
		w := server.dial(t)
		all.Go(func() {
			for i := range rounds {
				n := (i*7 + client*11) % 100 // half of the keys are other clients' as well
				key := fmt.Sprintf("<%d-%d>", n, i/25*(n%2))
				text := textFor(key, n)
				_, err := io.WriteString(w.Conn, postText(key, text))
				check(t, err)
				if a := w.answer(); a.status != http.StatusConflict { // told to another client by now
					assert.Equal(t, 200, a.status)
					assert.Equal(t, []string{key}, a.header["X-Key"])
					assert.Equal(t, shown(text), a.body)
				}
			}
		})
	}
	all.Wait()
	seen := 0
	for record := range engine.All() {
		var n, i int
		_, err := fmt.Sscanf(record.Key, "<%d-%d>", &n, &i)
		require.NoError(t, err)
		require.Equal(t, idem.Replay, record.State)
		require.Equal(t, textFor(record.Key, n), string(record.Response.Body))
		require.Equal(t, 1, bytes.Count(record.Response.Header, []byte("<")), "%s", record.Response.Header)
		require.Contains(t, string(record.Response.Header), "X-Key: "+record.Key)
		seen++
	}
	require.Greater(t, seen, 100)
}

// TestAnswersDoNotShareMemory: the server sends an answer after the middleware is through with it, and perhaps with the next.
func TestAnswersDoNotShareMemory(t *testing.T) {
	h := guard(t, fasthttpidem.Config{})(echoing)
	answers := make([]fasthttp.RequestCtx, 200)
	text := func(i int) (key, body string) {
		key = fmt.Sprintf("<%d>", i%100)
		return key, textFor(key, i%100)
	}
	for i := range answers { // first all of them, then all replays
		key, body := text(i)
		answers[i].Init(newRequest(key, body), nil, log.New(io.Discard, "", 0))
		h(&answers[i])
		if answers[i].Response.IsBodyStream() {
			require.Equal(t, body, string(answers[i].Response.Body())) // which reads it
		}
	}
	for i := range answers {
		key, body := text(i)
		require.Equal(t, body, string(answers[i].Response.Body()))
		require.Equal(t, key, string(answers[i].Response.Header.Peek("X-Key")))
		require.Equal(t, i >= 100, len(answers[i].Response.Header.Peek("Idempotency-Replayed")) > 0)
	}
}
