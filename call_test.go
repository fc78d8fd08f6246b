package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// failing is an operation that returns err.
func failing(err error) func(context.Context, idem.Claim) (idem.Response, error) {
	return func(context.Context, idem.Claim) (idem.Response, error) { return idem.Response{}, err }
}

func TestPermanentFailureIsRecorded(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"marked", idem.Permanent(io.ErrUnexpectedEOF), "unexpected EOF"},
		{"marked and wrapped", fmt.Errorf("charge: %w", idem.Permanent(io.ErrUnexpectedEOF)), "charge: unexpected EOF"},
		{"marked among others", errors.Join(errBoom, idem.Permanent(io.ErrUnexpectedEOF)), "boom\nunexpected EOF"},
		{"marked twice", idem.Permanent(idem.Permanent(io.ErrUnexpectedEOF)), "unexpected EOF"},
		{"a message in bytes that are no text", idem.Permanent(fmt.Errorf("\xff\x00%w", io.ErrUnexpectedEOF)), "\xff\x00unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{})}
			var owner, duplicate *idem.FailedError
			resp, err := idem.Do(t.Context(), store, order, failing(tt.err))
			require.ErrorAs(t, err, &owner)
			require.Equal(t, tt.want, err.Error())
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "the owner has the cause")
			require.True(t, resp.Failed)
			require.Equal(t, resp, owner.Response)
			require.Equal(t, []string{"Complete"}, store.calls)

			resp, err = idem.Do(t.Context(), store, order, unreached(t))
			require.ErrorAs(t, err, &duplicate)
			require.Equal(t, tt.want, err.Error())
			require.True(t, resp.Failed)
			require.Equal(t, resp, duplicate.Response)
			require.NoError(t, errors.Unwrap(err))
		})
	}
}

func TestIsPermanent(t *testing.T) {
	mark := idem.Permanent(errBoom)
	for _, err := range []error{mark, fmt.Errorf("charge: %w", mark), errors.Join(io.EOF, mark)} {
		require.True(t, idem.IsPermanent(err), "%v", err)
	}
	_, failed := idem.Do(t.Context(), openEngine(t, idem.Config{}), order, failing(mark))
	require.ErrorIs(t, failed, errBoom)
	for _, err := range []error{nil, errBoom, failed, fmt.Errorf("charge: %w", failed)} {
		require.False(t, idem.IsPermanent(err), "%v", err)
	}
}

func TestPermanentFailure(t *testing.T) {
	t.Run("of nil is nil", func(t *testing.T) {
		require.NoError(t, idem.Permanent(nil))
	})
	t.Run("keeps status, header and TTL of the response", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		sent := idem.Response{Status: 402, Header: []byte("h"), Body: []byte("replaced"), TTL: time.Hour}
		_, err := idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
			return sent, idem.Permanent(errBoom)
		})
		require.EqualError(t, err, "boom")
		rec, _, err := e.Lookup(t.Context(), order.Scope, order.Key)
		require.NoError(t, err)
		require.LessOrEqual(t, rec.Remaining, time.Hour)
		require.Equal(t, 402, rec.Response.Status)
		require.Equal(t, "h", string(rec.Response.Header))
		require.Equal(t, "boom", string(rec.Response.Body))
	})
	t.Run("may be a response instead of an error", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		_, first := idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
			return idem.Response{Failed: true, Body: []byte("declined")}, nil
		})
		_, second := idem.Do(t.Context(), e, order, unreached(t))
		for _, err := range []error{first, second} {
			var failed *idem.FailedError
			require.ErrorAs(t, err, &failed)
			require.EqualError(t, err, "declined")
		}
	})
	t.Run("of an operation within is not the outer one's", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		inner := idem.Request{Scope: "bank", Key: "charge-1"}
		outer := func(ctx context.Context, _ idem.Claim) (idem.Response, error) {
			return idem.Do(ctx, e, inner, failing(idem.Permanent(errBoom)))
		}
		for range 2 { // as the inner one's owner, and on its replay
			_, err := idem.Do(t.Context(), e, order, outer)
			require.EqualError(t, err, "boom")
			_, found, err := e.Lookup(t.Context(), order.Scope, order.Key)
			require.NoError(t, err)
			require.False(t, found)
		}
		_, err := idem.Do(t.Context(), e, order, func(ctx context.Context, c idem.Claim) (idem.Response, error) {
			resp, err := outer(ctx, c)
			return resp, idem.Permanent(err)
		})
		require.EqualError(t, err, "boom")
		_, err = idem.Do(t.Context(), e, order, unreached(t))
		require.EqualError(t, err, "boom")
	})
	t.Run("outlives the buffer of the request", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		_, err := idem.Do(t.Context(), e, order, failing(idem.Permanent(errBoom)))
		require.Error(t, err)
		r := order
		r.Buf = make([]byte, 0, 64)
		_, err = idem.Do(t.Context(), e, r, unreached(t))
		copy(r.Buf[:cap(r.Buf)], bytes.Repeat([]byte("x"), cap(r.Buf)))
		require.EqualError(t, err, "boom")
	})
	t.Run("with a message too long to keep is still one", func(t *testing.T) {
		e := openEngine(t, idem.Config{MaxResponseBytes: 3})
		_, err := idem.Do(t.Context(), e, order, failing(idem.Permanent(errBoom)))
		require.EqualError(t, err, "boom")
		_, err = idem.Do(t.Context(), e, order, unreached(t))
		var failed *idem.FailedError
		require.ErrorAs(t, err, &failed)
		require.ErrorContains(t, err, "not kept")
	})
	t.Run("that the store does not take is both", func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{})}
		store.onComplete = func(context.Context, int) error { return idem.ErrClosed }
		_, err := idem.Do(t.Context(), store, order, failing(idem.Permanent(errBoom)))
		var failed *idem.FailedError
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, errBoom)
		require.ErrorIs(t, err, idem.ErrNotRecorded)
		require.ErrorIs(t, err, idem.ErrClosed)
		require.Equal(t, []string{"Complete"}, store.calls)
	})
}

func TestDoKeepsAsMuchAsItCan(t *testing.T) {
	t.Run("a response that is too large is the owner's in full", func(t *testing.T) {
		e := openEngine(t, idem.Config{MaxResponseBytes: 3})
		resp, err := idem.Do(t.Context(), e, order, answer("four"))
		require.NoError(t, err)
		require.True(t, resp.Truncated)
		require.Equal(t, "four", string(resp.Body))

		resp, err = idem.Do(t.Context(), e, order, unreached(t))
		require.ErrorIs(t, err, idem.ErrTruncated)
		require.Equal(t, 201, resp.Status)
		require.True(t, resp.Truncated)
		require.Empty(t, resp.Body)
	})
	t.Run("a response that the function itself calls truncated", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		resp, err := idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
			return idem.Response{Status: 200, Truncated: true}, nil
		})
		require.NoError(t, err)
		require.Equal(t, idem.Response{Status: 200, Truncated: true}, resp)
		_, err = idem.Do(t.Context(), e, order, unreached(t))
		require.ErrorIs(t, err, idem.ErrTruncated)
	})
	unfit := []idem.Response{{TTL: -1}}
	if most, least := math.MaxInt32, math.MinInt32; strconv.IntSize > 32 {
		unfit = append(unfit, idem.Response{Status: most + 1}, idem.Response{Status: least - 1})
	}
	for _, bad := range unfit {
		t.Run(fmt.Sprintf("of a response with status %d and TTL %d that it ran", bad.Status, bad.TTL), func(t *testing.T) {
			store := &faulty{Store: openEngine(t, idem.Config{})}
			resp, err := idem.Do(t.Context(), store, order, func(context.Context, idem.Claim) (idem.Response, error) {
				return bad, nil
			})
			require.ErrorIs(t, err, idem.ErrNotRecorded)
			require.Equal(t, bad, resp)
			require.Equal(t, []string{"Complete"}, store.calls)
			_, err = idem.Do(t.Context(), store, order, unreached(t))
			require.ErrorIs(t, err, idem.ErrTruncated)
		})
	}
}

func TestPermanentFailureThatNoStoreTakes(t *testing.T) {
	e := openEngine(t, idem.Config{})
	_, err := idem.Do(t.Context(), e, order, func(context.Context, idem.Claim) (idem.Response, error) {
		return idem.Response{TTL: -1}, idem.Permanent(errBoom)
	})
	require.ErrorIs(t, err, errBoom)
	require.ErrorIs(t, err, idem.ErrNotRecorded)
	_, err = idem.Do(t.Context(), e, order, unreached(t))
	var failed *idem.FailedError
	require.ErrorAs(t, err, &failed)
}

// sameForDuplicates checks that a duplicate gets the value that the owner returned.
func sameForDuplicates[T any](t *testing.T, want T) {
	t.Helper()
	t.Run(fmt.Sprintf("%T(%#v)", want, want), func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		runs := 0
		for range 3 {
			got, err := idem.Call(t.Context(), e, order, func(context.Context, idem.Claim) (T, error) {
				runs++
				return want, nil
			})
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		require.Equal(t, 1, runs)
	})
}

func TestCallReplaysTheValue(t *testing.T) {
	type item struct {
		ID    int64
		Names []string
		Note  *string
	}
	sameForDuplicates(t, 0)
	sameForDuplicates(t, int64(math.MaxInt64))
	sameForDuplicates(t, math.SmallestNonzeroFloat64)
	sameForDuplicates(t, "")
	sameForDuplicates(t, "null")
	sameForDuplicates(t, "<a&b>\u2028\x00")
	sameForDuplicates(t, false)
	sameForDuplicates[any](t, nil)
	sameForDuplicates[*int](t, nil)
	sameForDuplicates[[]int](t, nil)
	sameForDuplicates(t, []int{})
	sameForDuplicates[[]byte](t, nil)
	sameForDuplicates(t, []byte{})
	sameForDuplicates(t, []byte{0, 0xff})
	sameForDuplicates[map[string]int](t, nil)
	sameForDuplicates(t, map[string]int{"": 0})
	sameForDuplicates(t, struct{}{})
	sameForDuplicates(t, item{ID: math.MinInt64, Names: []string{""}})
}

// A loud value does not survive being encoded.
type loud struct{ n int }

func (l loud) MarshalJSON() ([]byte, error) { panic(errBoom) }

// A sealed value is JSON by the methods of its pointer, as a big.Int is.
type sealed struct{ n int }

func (s *sealed) MarshalJSON() ([]byte, error) { return json.Marshal(s.n) }
func (s *sealed) UnmarshalJSON(b []byte) error { return json.Unmarshal(b, &s.n) }

func TestCallEncodesByPointer(t *testing.T) {
	sameForDuplicates(t, sealed{42})
	sameForDuplicates(t, struct{ Amount sealed }{sealed{42}})
	sameForDuplicates(t, &sealed{42})
}

// A leaving value ends the goroutine that encodes it.
type leaving struct{}

func (leaving) MarshalJSON() ([]byte, error) { runtime.Goexit(); return nil, nil }

func TestCallExitWhileEncoding(t *testing.T) {
	e := openEngine(t, idem.Config{})
	runs := 0
	call := func() (err error) {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err = idem.Call(t.Context(), e, order, func(context.Context, idem.Claim) (leaving, error) {
				runs++
				return leaving{}, nil
			})
		}()
		<-ended
		return err
	}
	_ = call()
	require.ErrorIs(t, call(), idem.ErrTruncated)
	require.Equal(t, 1, runs, "it had succeeded")
}

func TestCall(t *testing.T) {
	t.Run("gives the function the claim and its context", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		ctx := context.WithValue(t.Context(), traceKey{}, "trace")
		got, err := idem.Call(ctx, e, order, func(ctx context.Context, c idem.Claim) (string, error) {
			return fmt.Sprint(ctx.Value(traceKey{}), c.Key, c.Token > 0), nil
		})
		require.NoError(t, err)
		require.Equal(t, "trace"+"order-1"+"true", got)
	})
	t.Run("returns zero with an error of the function and releases the key", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		for range 2 {
			got, err := idem.Call(t.Context(), e, order, func(context.Context, idem.Claim) (int, error) { return 7, io.EOF })
			require.Equal(t, io.EOF, err)
			require.Zero(t, got)
		}
	})
	t.Run("replays a permanent failure", func(t *testing.T) {
		e := openEngine(t, idem.Config{})
		for range 2 {
			got, err := idem.Call(t.Context(), e, order, func(context.Context, idem.Claim) (int, error) {
				return 7, idem.Permanent(errBoom)
			})
			var failed *idem.FailedError
			require.ErrorAs(t, err, &failed)
			require.EqualError(t, err, "boom")
			require.Zero(t, got)
		}
	})
	t.Run("returns the outcomes of Do", func(t *testing.T) {
		for _, want := range []error{idem.ErrInProgress, idem.ErrMismatch, idem.ErrUnknown} {
			state := map[error]idem.State{
				idem.ErrInProgress: idem.InProgress, idem.ErrMismatch: idem.Mismatch, idem.ErrUnknown: idem.Unknown,
			}[want]
			got, err := idem.Call(t.Context(), scripted{out: idem.Outcome{State: state}}, order, func(context.Context, idem.Claim) (int, error) {
				t.Error("the operation ran")
				return 1, nil
			})
			require.ErrorIs(t, err, want)
			require.Zero(t, got)
		}
	})
	t.Run("returns the value although the store did not keep it", func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{})}
		store.onComplete = func(context.Context, int) error { return idem.ErrClosed }
		got, err := idem.Call(t.Context(), store, order, func(context.Context, idem.Claim) (int, error) { return 7, nil })
		require.ErrorIs(t, err, idem.ErrNotRecorded)
		require.ErrorIs(t, err, idem.ErrClosed)
		require.Equal(t, 7, got)
	})
	t.Run("returns zero on a replay whose body was not kept", func(t *testing.T) {
		e := openEngine(t, idem.Config{MaxResponseBytes: 3})
		fn := func(context.Context, idem.Claim) (string, error) { return "long", nil }
		got, err := idem.Call(t.Context(), e, order, fn)
		require.NoError(t, err)
		require.Equal(t, "long", got)
		got, err = idem.Call(t.Context(), e, order, fn)
		require.ErrorIs(t, err, idem.ErrTruncated)
		require.Empty(t, got)
	})
	t.Run("says what is wrong with a recorded body of another type", func(t *testing.T) {
		type pair struct{ A, B int }
		for _, body := range []string{"", `{"A":1,"B":"x"}`, "{"} {
			e := openEngine(t, idem.Config{})
			_, err := idem.Do(t.Context(), e, order, answer(body))
			require.NoError(t, err)
			got, err := idem.Call(t.Context(), e, order, func(context.Context, idem.Claim) (pair, error) {
				t.Error("the operation ran")
				return pair{}, nil
			})
			require.ErrorContains(t, err, "idem_test.pair")
			require.Zero(t, got, "not the half that was decoded")
		}
	})
}

// notEncoded checks that a value that JSON can't encode is the owner's, and that its key is not released.
func notEncoded[T any](t *testing.T, name string, value T, text string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		store := &faulty{Store: openEngine(t, idem.Config{})}
		runs := 0
		call := func() (T, error) {
			return idem.Call(t.Context(), store, order, func(context.Context, idem.Claim) (T, error) {
				runs++
				return value, nil
			})
		}
		got, err := call()
		require.ErrorIs(t, err, idem.ErrNotRecorded)
		require.ErrorContains(t, err, text)
		require.Equal(t, value, got)
		require.Equal(t, []string{"Complete"}, store.calls)
		got, err = call()
		require.ErrorIs(t, err, idem.ErrTruncated)
		require.Equal(t, *new(T), got)
		require.Equal(t, 1, runs)
	})
}

func TestCallKeepsTheKeyOfAValueThatIsNoJSON(t *testing.T) {
	notEncoded(t, "channel", make(chan int), "chan int")
	notEncoded(t, "not a number", math.Inf(1), "+Inf")
	notEncoded(t, "raw message", json.RawMessage("{"), "json")
	notEncoded(t, "panic", loud{1}, "boom")
}

// That a value is no JSON does not hide that the store failed as well: then not even that it ran is recorded.
func TestCallOfAValueThatIsNoJSONAndAStoreThatFails(t *testing.T) {
	store := &faulty{Store: openEngine(t, idem.Config{}), onComplete: failAlways(idem.ErrClosed)}
	value, err := idem.Call(t.Context(), store, order, func(context.Context, idem.Claim) (float64, error) {
		return math.Inf(1), nil
	})
	require.ErrorIs(t, err, idem.ErrNotRecorded)
	require.ErrorIs(t, err, idem.ErrClosed)
	require.True(t, math.IsInf(value, 1))
}
