package httpidem_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/httpidem"
	"github.com/seed-5bb5eb37/idem/internal/httpcases"
)

func TestResponseIsRecordedBeforeItIsSent(t *testing.T) {
	for name, code := range map[string]int{"stored": 201, "released": 500, "held": 504} {
		t.Run(name, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			w := httptest.NewRecorder()
			settled := false
			store.OnComplete = func(*idem.Response) error {
				settled = true
				require.Zero(t, w.Body.Len(), "the client must not have what the store has not")
				return nil
			}
			store.OnAbandon = func() error { return store.OnComplete(nil) }
			h := guardWith(t, store, httpidem.Config{Policy: func(code int) httpidem.Action {
				if code == 500 {
					return httpidem.Release
				}
				return httpidem.HoldAmbiguous(code)
			}})(status(code, "answer"))
			h.ServeHTTP(w, newRequest(t.Context(), "k", ""))
			require.True(t, settled)
			require.Equal(t, code, w.Code)
			require.Equal(t, "answer", w.Body.String())
		})
	}
}

func TestPolicies(t *testing.T) {
	for name, test := range httpcases.Policies {
		for code, want := range test.Want {
			t.Run(name+" "+http.StatusText(code), func(t *testing.T) {
				runs := 0
				h := guard(t, httpidem.Config{Policy: test.Policy})(counted(&runs, status(code, "")))
				require.Equal(t, code, post(t, h, "k", "").Code)
				again := post(t, h, "k", "")
				switch want {
				case httpcases.Stored:
					requireReplayed(t, again, code, "")
				case httpcases.Released:
					require.Equal(t, code, again.Code)
					require.Empty(t, again.Header().Get("Idempotency-Replayed"))
				case httpcases.Held:
					requireProblem(t, again, 409, httpidem.CodeOutcomeUnknown)
					require.Empty(t, again.Header().Get("Retry-After"))
				}
				require.Equal(t, map[string]int{httpcases.Stored: 1, httpcases.Released: 2, httpcases.Held: 1}[want], runs)
			})
		}
	}
}

func TestHoldOutlastsTheLease(t *testing.T) {
	// Under TakeOver, too: what is held must not depend on what the store does with a lease that ran out.
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{OnLeaseExpiry: idem.TakeOver, TTL: time.Hour})
		runs := 0
		h := guardWith(t, store, httpidem.Config{Policy: httpidem.HoldAmbiguous})(counted(&runs, status(504, "")))
		post(t, h, "k", "")
		time.Sleep(time.Hour - time.Nanosecond)
		requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
		require.Equal(t, 1, runs)
		time.Sleep(time.Nanosecond)
		require.Equal(t, 504, post(t, h, "k", "").Code)
		require.Equal(t, 2, runs)
	})
}

func TestUnknownOfTheStoreIsToldLikeHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{OnLeaseExpiry: idem.Hold})
		store.OnComplete = func(*idem.Response) error { return httpcases.ErrDown }
		h := guardWith(t, store, httpidem.Config{})(status(201, ""))
		requireProblem(t, post(t, h, "k", ""), 503, httpidem.CodeStoreUnavailable)
		time.Sleep(time.Minute)
		requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeOutcomeUnknown)
	})
}

func TestHandlerThatDoesNotAnswerReleasesTheKey(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":           func() { panic("no") },
		"ErrAbortHandler": func() { panic(http.ErrAbortHandler) },
		"Goexit":          runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newFaultyStore(t, idem.Config{})
				runs := 0
				h := guardWith(t, store, httpidem.Config{})(counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
					if runs == 1 {
						_, _ = w.Write([]byte("half an answer"))
						end()
					}
				}))
				w := httptest.NewRecorder()
				ended := make(chan any)
				go func() {
					defer func() { ended <- recover() }()
					h.ServeHTTP(w, newRequest(t.Context(), "k", ""))
				}()
				switch p := <-ended; name {
				case "panic":
					require.Equal(t, "no", p)
				case "ErrAbortHandler":
					require.Equal(t, http.ErrAbortHandler, p)
				case "Goexit":
					require.Nil(t, p)
				}
				require.Zero(t, w.Body.Len())
				require.Equal(t, 200, post(t, h, "k", "").Code)
				require.Equal(t, 2, runs)
			})
		})
	}
}

func TestPanicAfterTheHandlerKeepsTheKey(t *testing.T) {
	// A policy that panics is a mistake, but the handler has run.
	for name, conf := range map[string]httpidem.Config{
		"Policy": {Policy: func(int) httpidem.Action { panic("no") }},
		"Redact": {Redact: func(int, http.Header, []byte) []byte { panic("no") }},
	} {
		t.Run(name, func(t *testing.T) {
			h := guard(t, conf)(status(201, ""))
			require.PanicsWithValue(t, "no", func() { post(t, h, "k", "") })
			requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeInProgress)
		})
	}
}

func TestHandlerContext(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		store := newFaultyStore(t, idem.Config{})
		client, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		var after func() error
		h := guardWith(t, store, httpidem.Config{MaxRun: time.Hour})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := r.Context()
			after = ctx.Err
			leave()
			synctest.Wait()
			assert.NoError(t, ctx.Err(), "the client's leaving must not end the operation")
			assert.Equal(t, "value", ctx.Value(key{}))
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, time.Hour, time.Until(deadline))
			w.WriteHeader(http.StatusCreated)
		}))
		require.Equal(t, 201, postContext(client, h, "k", "").Code)
		require.ErrorIs(t, after(), context.Canceled, "as after any handler")
		requireReplayed(t, post(t, h, "k", ""), 201, "")
	})
}

func TestChildrenOfTheHandlersContext(t *testing.T) {
	type key struct{}
	for name, test := range map[string]struct {
		extend, err, cause error
	}{
		"time is up":    {nil, context.DeadlineExceeded, context.DeadlineExceeded},
		"claim is lost": {idem.ErrClaimLost, context.Canceled, idem.ErrClaimLost},
	} {
		for _, early := range []bool{true, false} { // whether somebody looks before it ends
			t.Run(fmt.Sprint(name, early), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newFaultyStore(t, idem.Config{})
					store.OnExtend = func() error { return test.extend }
					h := guardWith(t, store, httpidem.Config{MaxRun: time.Minute})(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						ctx := r.Context()
						if early {
							assert.NoError(t, ctx.Err())
						}
						time.Sleep(2 * time.Minute)
						assert.Equal(t, test.cause, context.Cause(ctx))
						assert.Equal(t, test.err, ctx.Err())
						child, cancel := context.WithCancel(context.WithValue(ctx, key{}, 1))
						defer cancel()
						assert.Equal(t, test.err, child.Err())
						assert.Equal(t, test.cause, context.Cause(child))
						_, ok := httpidem.FromContext(child)
						assert.True(t, ok)
					}))
					post(t, h, "k", "")
				})
			})
		}
	}
}

func TestCompleteFails(t *testing.T) {
	t.Run("once, and is tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			fails := 1
			store.OnComplete = func(*idem.Response) error {
				if fails--; fails >= 0 {
					return httpcases.ErrDown
				}
				return nil
			}
			h := guardWith(t, store, httpidem.Config{})(status(201, "answer"))
			require.Equal(t, "answer", post(t, h, "k", "").Body.String())
			requireReplayed(t, post(t, h, "k", ""), 201, "answer")
		})
	})
	t.Run("to answer in time, and is tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := &stuckStore{Store: newEngine(t, idem.Config{})}
			start := time.Now()
			h := guardWith(t, store, httpidem.Config{MaxRun: time.Hour})(status(201, "answer"))
			require.Equal(t, "answer", post(t, h, "k", "").Body.String())
			require.LessOrEqual(t, time.Since(start), 21*time.Second)
			requireReplayed(t, post(t, h, "k", ""), 201, "answer")
		})
	})
	t.Run("for ever: the client gets no result, and the key is kept until the lease ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			store.OnComplete = func(*idem.Response) error { return httpcases.ErrDown }
			store.OnAbandon = func() error {
				t.Error("the key must not be released")
				return nil
			}
			runs := 0
			h := guardWith(t, store, httpidem.Config{})(counted(&runs, status(201, "answer", "Location", "/1", "Content-Length", "6")))
			first := post(t, h, "k", "")
			requireProblem(t, first, 503, httpidem.CodeStoreUnavailable)
			require.Equal(t, "1", first.Header().Get("Retry-After"))
			require.NotContains(t, first.Header(), "Location", "of the answer that was not given")
			require.NotContains(t, first.Header(), "Content-Length")
			requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeInProgress)
			store.OnComplete = nil
			time.Sleep(30 * time.Second)
			require.Equal(t, 201, post(t, h, "k", "").Code, "nobody holds the key any more")
			require.Equal(t, 2, runs)
		})
	})
	t.Run("after the response was streamed: the client gets an error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := newFaultyStore(t, idem.Config{})
			store.OnComplete = func(*idem.Response) error { return idem.ErrClosed }
			h := guardWith(t, store, httpidem.Config{})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte("answer"))
				flush(w)
			}))
			require.PanicsWithValue(t, http.ErrAbortHandler, func() { post(t, h, "k", "") })
			requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeInProgress)
		})
	})
	t.Run("because the store keeps less: the client gets the answer, a retry does not run it", func(t *testing.T) {
		h := guardWith(t, newEngine(t, idem.Config{MaxResponseBytes: 100}), httpidem.Config{})(status(201, strings.Repeat("x", 101)))
		require.Equal(t, 101, post(t, h, "k", "").Body.Len())
		members := requireProblem(t, post(t, h, "k", ""), 410, httpidem.CodeResponseNotRetained)
		require.EqualValues(t, 201, members["original_status"])
	})
}

// stuckStore does not answer the first Complete before its context ends.
type stuckStore struct {
	idem.Store
	completes int
}

func (s *stuckStore) Complete(ctx context.Context, c idem.Claim, resp idem.Response) error {
	if s.completes++; s.completes == 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Complete(ctx, c, resp)
}

func TestAbandonFails(t *testing.T) {
	store := &httpcases.FaultyStore{Store: newEngine(t, idem.Config{}), OnAbandon: func() error { return httpcases.ErrDown }}
	h := guardWith(t, store, httpidem.Config{})(status(500, "broken"))
	require.Equal(t, 500, post(t, h, "k", "").Code, "the handler's answer is as true as ever")
	requireProblem(t, post(t, h, "k", ""), 409, httpidem.CodeInProgress)
}

func TestBeginFails(t *testing.T) {
	for name, cause := range map[string]error{"down": httpcases.ErrDown, "full": idem.ErrFull, "closed": idem.ErrClosed} {
		t.Run(name, func(t *testing.T) {
			store := &httpcases.FaultyStore{Store: newEngine(t, idem.Config{}), OnBegin: func() error { return cause }}
			runs := 0
			handler := counted(&runs, func(w http.ResponseWriter, r *http.Request) {
				_, guarded := httpidem.FromContext(r.Context())
				assert.False(t, guarded)
				assert.NoError(t, r.ParseForm())
				_, _ = w.Write([]byte(r.PostForm.Get("a")))
			})
			const form = "application/x-www-form-urlencoded"

			refused := post(t, guardWith(t, store, httpidem.Config{})(handler), "k", "a=1", "Content-Type", form)
			requireProblem(t, refused, 503, httpidem.CodeStoreUnavailable)
			require.Equal(t, "1", refused.Header().Get("Retry-After"))
			require.Zero(t, runs)

			var log bytes.Buffer
			open := guardWith(t, store, httpidem.Config{FailOpen: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})(handler)
			require.Equal(t, "1", post(t, open, "secret-key", "a=1", "Content-Type", form).Body.String())
			require.Equal(t, 1, runs)
			require.Contains(t, log.String(), "without protection")
			require.NotContains(t, log.String(), "secret-key")
		})
	}
	t.Run("for a client that left, which FailOpen is not for", func(t *testing.T) {
		left, leave := context.WithCancel(t.Context())
		leave()
		runs := 0
		h := guard(t, httpidem.Config{FailOpen: true})(counted(&runs, status(201, "")))
		require.Equal(t, 503, postContext(left, h, "k", "").Code)
		require.Zero(t, runs)
	})
}

func TestClaimIsExtendedWhileCompleteIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, extended, failures := newFaultyStore(t, idem.Config{Lease: 3 * time.Second}), 0, 0
		store.OnExtend = func() error { extended++; return nil }
		store.OnComplete = func(*idem.Response) error {
			if failures++; failures < 5 {
				return httpcases.ErrDown
			}
			return nil
		}
		require.Equal(t, 201, post(t, guardWith(t, store, httpidem.Config{})(status(201, "")), "k", "").Code)
		require.Equal(t, 2, extended, "the attempts take 2.62 seconds")
	})
}

func TestCompleteIsNotTriedAgainInVain(t *testing.T) {
	for _, final := range []error{idem.ErrClaimLost, idem.ErrClosed} {
		synctest.Test(t, func(t *testing.T) {
			store, tries := newFaultyStore(t, idem.Config{}), 0
			store.OnComplete = func(*idem.Response) error { tries++; return final }
			w := post(t, guardWith(t, store, httpidem.Config{})(status(201, "")), "k", "")
			requireProblem(t, w, 503, httpidem.CodeStoreUnavailable)
			require.Equal(t, 1, tries)
		})
	}
}
