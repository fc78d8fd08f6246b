package fiberidem_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem"
	"github.com/seed-5bb5eb37/idem/fasthttpidem/fiberidem"
)

const uuid = "01234567-89ab-4def-8123-000000000000"

// A contest is the same API behind one of the two middlewares: POST /payments counts and answers as the field Answer says.
type contest struct {
	t    *testing.T
	app  *fiber.App
	runs int
}

func newContest(t *testing.T, middleware fiber.Handler) *contest {
	s := &contest{t: t, app: fiber.New()}
	s.app.Post("/payments", middleware, func(c fiber.Ctx) error {
		s.runs++
		if c.Get("Answer") == "500" {
			return c.Status(500).SendString("broken")
		}
		return c.Status(201).SendString("charged " + c.Get("User"))
	})
	return s
}

func fibersOwn(storage fiber.Storage) fiber.Handler {
	return idempotency.New(idempotency.Config{KeyHeader: "Idempotency-Key", Storage: storage})
}

func ours(t *testing.T, store idem.Store) fiber.Handler {
	t.Helper()
	m, err := fiberidem.New(store, fasthttpidem.Config{Scope: func(ctx *fasthttp.RequestCtx) (string, error) {
		return string(ctx.Request.Header.Peek("User")), nil
	}})
	require.NoError(t, err)
	return m
}

func (s *contest) post(key, body string, fields ...string) (status int, answer string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://app.test/payments", strings.NewReader(body))
	require.NoError(s.t, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	resp, err := s.app.Test(req, fiber.TestConfig{Timeout: 30 * time.Second})
	require.NoError(s.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, resp.Body.Close())
	return resp.StatusCode, string(text)
}

func newEngine(t *testing.T) *idem.Engine {
	t.Helper()
	engine, err := idem.New(idem.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	return engine
}

// TestBesideFibersOwn shows what the README says of the two.
func TestBesideFibersOwn(t *testing.T) {
	for _, test := range []struct {
		name         string
		post         func(s *contest) int // and returns the status of the last answer
		theirs, ours int
		runs         [2]int
	}{
		{"another principal", func(s *contest) int {
			s.post(uuid, "1", "User", "ann")
			status, answer := s.post(uuid, "1", "User", "bob")
			require.Equal(s.t, s.runs == 2, answer == "charged bob")
			return status
		}, 201, 201, [2]int{1, 2}},
		{"another body", func(s *contest) int {
			s.post(uuid, "1")
			status, _ := s.post(uuid, "2")
			return status
		}, 201, 422, [2]int{1, 1}},
		{"no UUID", func(s *contest) int { status, _ := s.post("order-7", "1"); return status }, 500, 201, [2]int{0, 1}},
		{"no key", func(s *contest) int { status, _ := s.post("", "1"); return status }, 201, 400, [2]int{1, 0}},
		{"500", func(s *contest) int {
			s.post(uuid, "1", "Answer", "500")
			status, _ := s.post(uuid, "1")
			return status
		}, 500, 201, [2]int{1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			theirs, ours := newContest(t, fibersOwn(nil)), newContest(t, ours(t, newEngine(t)))
			require.Equal(t, test.theirs, test.post(theirs))
			require.Equal(t, test.ours, test.post(ours))
			require.Equal(t, test.runs[0], theirs.runs)
			require.Equal(t, test.runs[1], ours.runs)
		})
	}
}

func TestBesideFibersOwnWhenTheAnswerCannotBeStored(t *testing.T) {
	theirs := newContest(t, fibersOwn(readOnly{}))
	for range 2 {
		status, _ := theirs.post(uuid, "1")
		require.Equal(t, 500, status)
	}
	require.Equal(t, 2, theirs.runs)

	ours := newContest(t, ours(t, incomplete{newEngine(t)}))
	status, answer := ours.post(uuid, "1")
	require.Equal(t, 503, status, answer)
	status, answer = ours.post(uuid, "1")
	require.Equal(t, 409, status, answer)
	require.Equal(t, 1, ours.runs)
}

// readOnly is a storage that nothing gets into.
type readOnly struct{}

var errReadOnly = errors.New("read-only")

func (readOnly) Get(string) ([]byte, error)                             { return nil, nil }
func (readOnly) Set(string, []byte, time.Duration) error                { return errReadOnly }
func (readOnly) Delete(string) error                                    { return errReadOnly }
func (readOnly) Reset() error                                           { return errReadOnly }
func (readOnly) Close() error                                           { return nil }
func (readOnly) GetWithContext(context.Context, string) ([]byte, error) { return nil, nil }
func (readOnly) SetWithContext(context.Context, string, []byte, time.Duration) error {
	return errReadOnly
}
func (readOnly) DeleteWithContext(context.Context, string) error { return errReadOnly }
func (readOnly) ResetWithContext(context.Context) error          { return errReadOnly }

// incomplete is a store that records nothing.
type incomplete struct{ *idem.Engine }

func (incomplete) Complete(context.Context, idem.Claim, idem.Response) error { return errReadOnly }
