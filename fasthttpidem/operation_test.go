package fasthttpidem_test

import (
	"context"
	"net/http"
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

func TestNoStoreFreesTheKey(t *testing.T) {
	for _, code := range []int{200, 400, 504} {
		var runs atomic.Int32
		h := guard(t, fasthttpidem.Config{Policy: httpidem.HoldAmbiguous})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			op, ok := fasthttpidem.FromContext(ctx)
			assert.True(t, ok)
			op.NoStore()
			ctx.SetStatusCode(code)
		}))
		require.Equal(t, code, call(t, h, "k", "").status)
		require.Equal(t, code, call(t, h, "k", "").status)
		require.EqualValues(t, 2, runs.Load())
	}
}

func TestHoldKeepsTheKey(t *testing.T) {
	for name, answer := range map[string]fasthttp.RequestHandler{
		"that would be stored":   status(201, "created"),
		"that would be released": status(503, "failed"),
		"of nothing":             func(ctx *fasthttp.RequestCtx) { op, _ := fasthttpidem.FromContext(ctx); op.NoStore() },
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int32
			h := guard(t, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
				op, _ := fasthttpidem.FromContext(ctx)
				op.Hold()
				answer(ctx)
			}))
			require.NotEqual(t, 409, call(t, h, "k", "").status, "the first client gets the answer as it is")
			again := call(t, h, "k", "")
			requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
			require.Empty(t, again.get("Retry-After"))
			require.EqualValues(t, 1, runs.Load())
		})
	}
}

func TestSetTTLBoundsTheReplays(t *testing.T) {
	for set, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, 0: 24 * time.Hour, -1: 24 * time.Hour} {
		for _, code := range []int{200, 504} { // one is stored, the other held
			bubble(t, func(t *testing.T) {
				var runs atomic.Int32
				h := guardWith(t, newFaultyStore(t, idem.Config{}), fasthttpidem.Config{Policy: httpidem.HoldAmbiguous})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
					op, _ := fasthttpidem.FromContext(ctx)
					op.SetTTL(set)
					ctx.SetStatusCode(code)
				}))
				call(t, h, "k", "")
				time.Sleep(want - time.Nanosecond)
				call(t, h, "k", "")
				require.EqualValues(t, 1, runs.Load())
				time.Sleep(time.Nanosecond)
				call(t, h, "k", "")
				require.EqualValues(t, 2, runs.Load())
			})
		}
	}
}

func TestClaimHasTheStoresToken(t *testing.T) {
	var claims []idem.Claim
	h := guard(t, fasthttpidem.Config{Scope: func(*fasthttp.RequestCtx) (string, error) { return "ann", nil }})(func(ctx *fasthttp.RequestCtx) {
		op, _ := fasthttpidem.FromContext(ctx)
		claims = append(claims, op.Claim())
		ctx.SetStatusCode(http.StatusInternalServerError)
	})
	call(t, h, "k", "")
	call(t, h, "k", "")
	require.Len(t, claims, 2)
	require.Greater(t, claims[1].Token, claims[0].Token)
	require.Equal(t, "k", claims[0].Key)
	require.Equal(t, "ann", claims[0].Scope)
}

// A handler may complete its claim itself, as in the transaction of its effect. It has not lost it then, although that
// can't be extended any more.
func TestHandlerCompletesItself(t *testing.T) {
	bubble(t, func(t *testing.T) {
		engine := newEngine(t, idem.Config{Lease: 9 * time.Second})
		var runs atomic.Int32
		h := guardWith(t, engine, fasthttpidem.Config{})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
			op, _ := fasthttpidem.FromContext(ctx)
			time.Sleep(10 * time.Second)
			var resp fasthttp.Response
			resp.SetStatusCode(http.StatusCreated)
			resp.Header.Set("Location", "/payments/1")
			resp.SetBodyString("in the transaction")
			check(t, engine.Complete(op.Context(), op.Claim(), fasthttpidem.NewResponse(&resp)))
			time.Sleep(time.Minute)
			check(t, context.Cause(op.Context()))
			resp.CopyTo(&ctx.Response)
		}))
		first := call(t, h, "k", "")
		require.Equal(t, 201, first.status)
		require.Equal(t, "in the transaction", first.body)
		again := call(t, h, "k", "")
		requireReplayed(t, again, 201, "in the transaction")
		require.Equal(t, "/payments/1", again.get("Location"))
		require.Equal(t, first.get("Content-Type"), again.get("Content-Type"))
		require.EqualValues(t, 1, runs.Load())
	})
}

// There is no operation without protection, on a connection that had one with it before either.
func TestNoOperationWithoutProtection(t *testing.T) {
	var runs atomic.Int32
	server := startServer(t, guard(t, fasthttpidem.Config{Optional: true})(counted(&runs, func(ctx *fasthttp.RequestCtx) {
		_, ok := fasthttpidem.FromContext(ctx)
		assert.Equal(t, len(ctx.Request.Header.Peek("Idempotency-Key")) > 0 && ctx.IsPost(), ok)
	})))
	w := server.dial(t)
	for _, text := range []string{
		"POST /payments HTTP/1.1\nHost: x\nIdempotency-Key: k\nContent-Length: 0\n\n",
		"POST /payments HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
		"GET /payments HTTP/1.1\nHost: x\nIdempotency-Key: k\n\n",
	} {
		w.send(text)
		require.Equal(t, 200, w.answer().status)
	}
	require.EqualValues(t, 3, runs.Load())
}
