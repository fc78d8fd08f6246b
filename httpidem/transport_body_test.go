package httpidem_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/httpidem"
)

func TestTransportFreezesTheBody(t *testing.T) {
	send := func(t *testing.T, tr httpidem.Transport, req *http.Request, base *script) (*result, error) {
		t.Helper()
		tr.Base, tr.MaxBackoff = base, 1
		return trip(tr.RoundTrip, req)
	}
	t.Run("and closes it once", func(t *testing.T) {
		body := &closeCounter{Reader: strings.NewReader("hello")}
		base := newScript(replies(503))
		_, err := send(t, httpidem.Transport{}, scriptPost(t, body), base)
		require.NoError(t, err)
		require.Len(t, base.sent, 4)
		require.Equal(t, 1, body.closed)
	})
	t.Run("and lets Base rewind it", func(t *testing.T) {
		base := newScript(replies(200))
		_, err := send(t, httpidem.Transport{}, scriptPost(t, onlyReader("hello")), base)
		require.NoError(t, err)
		for range 2 {
			again, err := base.sent[0].req.GetBody()
			require.NoError(t, err)
			got, err := io.ReadAll(again)
			require.NoError(t, err)
			require.Equal(t, "hello", string(got))
		}
	})
	t.Run("rather than ask the caller for another", func(t *testing.T) {
		req := scriptPost(t, strings.NewReader("first"))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("other")), nil }
		base := newScript(replies(503), replies(200))
		_, err := send(t, httpidem.Transport{}, req, base)
		require.NoError(t, err)
		require.Equal(t, []string{"first", "first"}, []string{base.sent[0].body, base.sent[1].body})
	})
	t.Run("up to the limit", func(t *testing.T) {
		for _, row := range []struct{ size, attempts int }{{9, 4}, {10, 4}, {11, 1}, {500_000, 1}} {
			text := strings.Repeat("x", row.size)
			for name, body := range map[string]io.Reader{"known length": strings.NewReader(text), "unknown length": onlyReader(text)} {
				closer := &closeCounter{Reader: body}
				req := scriptPost(t, body)
				req.Body = closer
				base := newScript(replies(503))
				resp, err := send(t, httpidem.Transport{MaxBodyBytes: 10}, req, base)
				require.NoError(t, err)
				require.Equal(t, 503, resp.status)
				require.Len(t, base.sent, row.attempts, "%d bytes, %s", row.size, name)
				for _, s := range base.sent {
					require.Equal(t, text, s.body)
				}
				require.Equal(t, 1, closer.closed)
				if row.size > 10 && req.ContentLength > 0 {
					require.Same(t, closer, base.sent[0].req.Body, "what is known to be too long is not touched")
				}
			}
		}
	})
	t.Run("but not for a single attempt", func(t *testing.T) {
		req := scriptPost(t, onlyReader("x"))
		base := newScript(replies(503))
		_, err := send(t, httpidem.Transport{MaxAttempts: 1}, req, base)
		require.NoError(t, err)
		require.Len(t, base.sent, 1)
		require.Equal(t, req.Body, base.sent[0].req.Body)
		require.Nil(t, base.sent[0].req.GetBody)
	})
	t.Run("with an error beyond the limit as one of the stream", func(t *testing.T) {
		body := io.MultiReader(strings.NewReader("0123456789abc"), iotest.ErrReader(errCut))
		base := newScript(replies(200))
		_, err := send(t, httpidem.Transport{MaxBodyBytes: 10}, scriptPost(t, body), base)
		require.ErrorIs(t, err, errCut)
		require.Equal(t, 1, asRetryError(t, err).Attempts)
	})
	t.Run("empty", func(t *testing.T) {
		for _, body := range []io.Reader{nil, http.NoBody, onlyReader("")} {
			base := newScript(replies(503), replies(200))
			_, err := send(t, httpidem.Transport{}, scriptPost(t, body), base)
			require.NoError(t, err)
			require.Len(t, base.sent, 2)
			out := base.sent[0].req
			require.True(t, out.Body == nil || out.Body == http.NoBody, "so that net/http knows")
			require.Zero(t, out.ContentLength)
		}
	})
	t.Run("with trailers that it sets at its end", func(t *testing.T) {
		req := scriptPost(t, nil)
		req.Trailer = http.Header{"X-Sum": nil}
		req.ContentLength = -1
		req.Body = io.NopCloser(io.MultiReader(strings.NewReader("hello"), readerFunc(func([]byte) (int, error) {
			req.Trailer.Set("X-Sum", "5d41")
			return 0, io.EOF
		})))
		base := newScript(replies(503), replies(200))
		_, err := send(t, httpidem.Transport{}, req, base)
		require.NoError(t, err)
		for _, s := range base.sent {
			require.Equal(t, "5d41", s.req.Trailer.Get("X-Sum"))
			require.EqualValues(t, -1, s.length, "HTTP/1 sends trailers only after chunks")
		}
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func asRetryError(t *testing.T, err error) *httpidem.RetryError {
	t.Helper()
	var retry *httpidem.RetryError
	require.ErrorAs(t, err, &retry)
	require.NotEmpty(t, retry.Key)
	return retry
}

func TestTransportDoesNotSendABodyThat(t *testing.T) {
	for name, req := range map[string]*http.Request{
		"can't be read":               scriptPost(t, io.MultiReader(strings.NewReader("x"), iotest.ErrReader(errCut))),
		"is shorter than it declared": scriptPost(t, onlyReader("hell")),
		"is longer than it declared":  scriptPost(t, onlyReader("hello!")),
	} {
		t.Run(name, func(t *testing.T) {
			req.ContentLength = 5
			base := newScript(replies(200))
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, req)
			require.ErrorContains(t, err, "request body: ")
			retry := asRetryError(t, err)
			require.Zero(t, retry.Attempts)
			require.False(t, retry.MayHaveRun)
			require.Empty(t, base.sent)
		})
	}
}

func TestTransportEndsWithItsContext(t *testing.T) {
	errLeft := errors.New("user left")
	t.Run("before the first attempt", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errLeft)
		base, body := newScript(replies(200)), &closeCounter{Reader: strings.NewReader("x")}
		_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, body).WithContext(ctx))
		require.ErrorIs(t, err, errLeft)
		require.False(t, asRetryError(t, err).MayHaveRun)
		require.Empty(t, base.sent)
		require.Equal(t, 1, body.closed)

		_, err = trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil).WithContext(ctx))
		require.ErrorIs(t, err, errLeft)
		require.Empty(t, base.sent)
	})
	t.Run("while the body does not come", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errLeft)
			defer cancel()
			body, _ := io.Pipe()
			base := newScript(replies(200))
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, body).WithContext(ctx))
			require.ErrorIs(t, err, errLeft)
			require.Zero(t, asRetryError(t, err).Attempts)
			require.Empty(t, base.sent)
		})
	})
	for name, answer := range map[string]reply{"an answer": replies(503, "Retry-After: 9"), "an error": cutOff} {
		t.Run("during the back-off after "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, errLeft)
				defer cancel()
				start := time.Now()
				base := newScript(answer)
				tr := &httpidem.Transport{Base: base, MinBackoff: 1000 * time.Hour}
				_, err := trip(tr.RoundTrip, scriptPost(t, nil).WithContext(ctx))
				require.ErrorIs(t, err, errLeft)
				require.Equal(t, 3*time.Second, time.Since(start))
				retry := asRetryError(t, err)
				require.Equal(t, 1, retry.Attempts)
				require.True(t, retry.MayHaveRun)
				if name == "an error" {
					require.ErrorIs(t, err, errCut, "what had gone wrong is not lost")
				} else {
					require.ErrorContains(t, err, "status 503")
				}
			})
		})
	}
	t.Run("during the last attempt, with a Base that does not say why", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		base := newScript(func(*http.Request) (*http.Response, error) {
			cancel(errLeft)
			return nil, errCut
		})
		_, err := trip((&httpidem.Transport{Base: base, MaxAttempts: 1}).RoundTrip, scriptPost(t, nil).WithContext(ctx))
		require.ErrorIs(t, err, errLeft)
		require.ErrorIs(t, err, errCut)
	})
	t.Run("during an attempt", func(t *testing.T) {
		hangs := func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			base := newScript(hangs)
			_, err := trip((&http.Client{Transport: &httpidem.Transport{Base: base}}).Do, scriptPost(t, onlyReader("x")).WithContext(ctx))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Len(t, base.sent, 1)
			require.True(t, asRetryError(t, err).MayHaveRun)
			var asked *url.Error
			require.ErrorAs(t, err, &asked)
			require.True(t, asked.Timeout())
		})
		synctest.Test(t, func(t *testing.T) {
			base := newScript(hangs)
			_, err := trip((&http.Client{Transport: &httpidem.Transport{Base: base}, Timeout: time.Second}).Do, scriptPost(t, nil))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Len(t, base.sent, 1)
		})
	})
}

func TestTransportLimitsAnAttempt(t *testing.T) {
	hangs := func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	}
	t.Run("and sends another", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(hangs, hangs, replies(201))
			start := time.Now()
			resp, err := trip((&httpidem.Transport{Base: base, MaxBackoff: 1, AttemptTimeout: time.Second}).RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			require.Equal(t, 201, resp.status)
			require.InDelta(t, 2, time.Since(start).Seconds(), 0.001)
		})
	})
	t.Run("and reports a timeout that is not the context's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(hangs)
			_, err := trip((&httpidem.Transport{Base: base, MaxBackoff: 1, AttemptTimeout: time.Second}).RoundTrip, scriptPost(t, nil))
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			retry := asRetryError(t, err)
			require.Equal(t, 4, retry.Attempts)
			require.True(t, retry.Timeout())
			require.True(t, retry.MayHaveRun)
		})
	})
	t.Run("but not the reading of its answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := newScript(repliesBody(200, "slowly"))
			resp, err := (&httpidem.Transport{Base: base, AttemptTimeout: time.Second}).RoundTrip(scriptPost(t, nil))
			require.NoError(t, err)
			ctx := base.sent[0].req.Context()
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
			require.NoError(t, resp.Body.Close())
			require.Error(t, ctx.Err(), "released with the body")
		})
	})
	t.Run("and throws away an answer that came too late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			late := &closeCounter{Reader: strings.NewReader("x")}
			base := newScript(func(req *http.Request) (*http.Response, error) {
				<-req.Context().Done()
				return &http.Response{StatusCode: http.StatusOK, Body: late}, nil
			}, replies(201))
			resp, err := trip((&httpidem.Transport{Base: base, AttemptTimeout: time.Second}).RoundTrip, scriptPost(t, nil))
			require.NoError(t, err)
			require.Equal(t, 201, resp.status)
			require.Equal(t, 1, late.closed)
		})
	})
	t.Run("and never hands out an answer that it then cuts off", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for range 200 { // the answer and the end of the attempt fall on the same instant
				base := newScript(func(*http.Request) (*http.Response, error) {
					time.Sleep(time.Second)
					return replies(200)(nil)
				})
				resp, _ := (&httpidem.Transport{Base: base, AttemptTimeout: time.Second}).RoundTrip(scriptPost(t, nil))
				synctest.Wait()
				if resp != nil {
					require.NoError(t, base.sent[len(base.sent)-1].req.Context().Err())
					require.NoError(t, resp.Body.Close())
				}
			}
		})
	})
	t.Run("and leaves a switched connection whole", func(t *testing.T) {
		for _, conn := range []io.ReadWriteCloser{&switchedConn{}, &halfClosingConn{}} {
			base := newScript(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: conn}, nil
			})
			resp, err := (&httpidem.Transport{Base: base, AttemptTimeout: time.Minute}).RoundTrip(scriptPost(t, nil))
			require.NoError(t, err)
			require.Implements(t, (*io.Writer)(nil), resp.Body)
			half, ok := resp.Body.(interface{ CloseWrite() error })
			require.True(t, ok)
			if _, can := conn.(*halfClosingConn); can {
				require.ErrorIs(t, half.CloseWrite(), errCut)
			} else {
				require.ErrorIs(t, half.CloseWrite(), http.ErrNotSupported)
			}
			ctx := base.sent[0].req.Context()
			require.NoError(t, ctx.Err())
			require.NoError(t, resp.Body.Close())
			require.Error(t, ctx.Err(), "released with the connection")
		}
	})
}

type switchedConn struct{ io.ReadWriter }

func (*switchedConn) Close() error { return nil }

type halfClosingConn struct{ switchedConn }

func (*halfClosingConn) CloseWrite() error { return errCut }

func TestTransportDiscardsAnswers(t *testing.T) {
	// discarded returns what is left of body after an answer with it was discarded.
	discarded := func(t *testing.T, body io.ReadCloser) {
		t.Helper()
		base := newScript(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: body}, nil
		}, replies(200))
		_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil))
		require.NoError(t, err)
	}
	t.Run("to their end, so that the connection can be used again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rest := strings.NewReader(strings.Repeat("x", 4000))
			body := &closeCounter{Reader: rest}
			discarded(t, body)
			require.Zero(t, rest.Len())
			require.Equal(t, 1, body.closed)
		})
	})
	t.Run("but not endless ones", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var read int
			body := &closeCounter{Reader: readerFunc(func(p []byte) (int, error) { read += len(p); return len(p), nil })}
			discarded(t, body)
			require.Less(t, read, 1<<20)
			require.Equal(t, 1, body.closed)
		})
	})
	t.Run("nor ones that never come", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			body, _ := io.Pipe()
			discarded(t, body)
			require.Less(t, time.Since(start), time.Second)
		})
	})
	t.Run("even without a body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { discarded(t, nil) })
	})
}

func TestRetryError(t *testing.T) {
	base := newScript(cutOff)
	ctx := httpidem.WithKey(t.Context(), "order-7")
	_, err := trip((&httpidem.Transport{Base: base, MaxAttempts: 3, MaxBackoff: 1}).RoundTrip, scriptPost(t, nil).WithContext(ctx))
	require.EqualError(t, err, "httpidem: no answer, attempts 3, request may have run: connection cut")
	require.Equal(t, &httpidem.RetryError{Key: "order-7", Attempts: 3, MayHaveRun: true, Err: errCut}, err)
	require.NotContains(t, err.Error(), "order-7", "keys have no place in logs")
	require.False(t, asRetryError(t, err).Timeout())

	t.Run("remembers that an earlier answer left it open", func(t *testing.T) {
		for code, may := range map[int]bool{425: false, 429: false, 502: true, 503: true, 504: true} {
			ctx, cancel := context.WithCancel(t.Context())
			base := newScript(func(req *http.Request) (*http.Response, error) {
				cancel()
				return replies(code)(req)
			})
			_, err := trip((&httpidem.Transport{Base: base}).RoundTrip, scriptPost(t, nil).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, may, asRetryError(t, err).MayHaveRun, code)
		}
	})
}

func TestTransportClosesIdleConnectionsOfItsBase(t *testing.T) {
	base := &idleCloser{script: newScript(replies(200))}
	(&http.Client{Transport: &httpidem.Transport{Base: base}}).CloseIdleConnections()
	require.EqualValues(t, 1, base.calls.Load())
	(&httpidem.Transport{Base: newScript()}).CloseIdleConnections()
}

type idleCloser struct {
	*script
	calls atomic.Int64
}

func (c *idleCloser) CloseIdleConnections() { c.calls.Add(1) }
