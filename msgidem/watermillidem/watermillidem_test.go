package watermillidem_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem/watermillidem"
)

// This is why the package exists.
func TestFailingHandlerLosesTheMessageUnderWatermillsDeduplicator(t *testing.T) {
	deliver := func(t *testing.T, dedup message.HandlerMiddleware) (runs, effects int) {
		r := newRig(t, dedup)
		r.handle("payments", func(*message.Message) error {
			if runs++; runs == 1 {
				return errNotYet
			}
			effects++
			return nil
		})
		r.start()
		r.publish("m1", "pay 7") // until it is acknowledged
		return runs, effects
	}
	t.Run("which drops the redelivery as a duplicate", func(t *testing.T) {
		runs, effects := deliver(t, (&middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherSHA256(1 << 20), Timeout: time.Second}).Middleware)
		require.Equal(t, 1, runs)
		require.Zero(t, effects, "acknowledged, and never handled")
	})
	t.Run("but not under this one", func(t *testing.T) {
		o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
		runs, effects := deliver(t, o.Middleware)
		require.Equal(t, 2, runs)
		require.Equal(t, 1, effects)
	})
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	t.Run("run once, and once in each handler of the topic", func(t *testing.T) {
		t.Parallel()
		o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
		r := newRig(t, o.Middleware)
		var payments, mails atomic.Int32
		r.handle("payments", func(*message.Message) error { payments.Add(1); return nil })
		r.handle("mails", func(*message.Message) error { mails.Add(1); return nil })
		r.start()
		for range 3 {
			r.publish("m1", "pay 7")
		}
		r.publish("m2", "pay 7")
		require.EqualValues(t, 2, payments.Load())
		require.EqualValues(t, 2, mails.Load())
		require.Equal(t, watermillidem.Stats{Runs: 4, Replays: 4}, o.Stats())
	})
	t.Run("have their scope and key as configured", func(t *testing.T) {
		t.Parallel()
		e := openEngine(t, idem.Config{})
		o := newOnce(t, e, watermillidem.Config{Scope: "billing", Key: watermillidem.MetadataKey("order")})
		r := newRig(t, o.Middleware)
		r.handle("payments", func(*message.Message) error { return nil })
		r.start()
		msg := message.NewMessage("m1", []byte("pay 7"))
		msg.Metadata.Set("order", "o1")
		require.NoError(t, r.queue.Publish("orders", msg))
		_, ok, err := e.Lookup(t.Context(), "billing/payments", "o1")
		require.NoError(t, err)
		require.True(t, ok)
		bare := newOnce(t, e, watermillidem.Config{Scope: "bare"}) // without a router there is no name
		_, err = bare.Middleware(message.PassthroughHandler)(msg)
		require.NoError(t, err)
		_, ok, err = e.Lookup(t.Context(), "bare", "m1")
		require.NoError(t, err)
		require.True(t, ok)
	})
}

// A flaky publisher fails the first time: for its consumer that is as if the process had died before it published.
type flaky struct {
	message.Publisher
	failed atomic.Bool
}

func (p *flaky) Publish(topic string, messages ...*message.Message) error {
	if !p.failed.Swap(true) {
		return errNotYet
	}
	return p.Publisher.Publish(topic, messages...)
}

func (*flaky) Close() error { return nil }

func TestProducedMessages(t *testing.T) {
	t.Parallel()
	o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
	r := newRig(t, o.Middleware)
	receipts := r.collect("receipts")
	runs := 0
	r.router.AddHandler("payments", "orders", r.queue, "receipts", &flaky{Publisher: r.queue}, func(m *message.Message) ([]*message.Message, error) {
		runs++
		first := message.NewMessage("r1", []byte("paid \x00\xff"))
		first.Metadata.Set("bytes", "\xff\xfe")
		return []*message.Message{first, message.NewMessage("r2", nil)}, nil
	})
	r.start()
	r.publish("m1", "pay 7")
	require.Equal(t, 1, runs, "the handler is not run again because of what came after it")
	got := receipts()
	require.Len(t, got, 2)
	require.Equal(t, []string{"r1", "paid \x00\xff", "\xff\xfe", "r2", ""}, []string{
		got[0].UUID, string(got[0].Payload), got[0].Metadata.Get("bytes"), got[1].UUID, string(got[1].Payload),
	})
	r.publish("m1", "pay 7") // at least once
	require.Equal(t, 1, runs)
	require.Len(t, receipts(), 4)
	require.Equal(t, "r1", receipts()[2].UUID)
}

func TestWithRetryAndPoisonQueue(t *testing.T) {
	t.Parallel()
	// poisonRig has the middlewares that the README recommends.
	poisonRig := func(t *testing.T, h message.NoPublishHandlerFunc) (r *rig, poison func() []*message.Message, o *watermillidem.Once) {
		o = newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
		r = newRig(t)
		r.router.AddMiddleware(recommended(t, r.queue, o)...)
		poison = r.collect("poison")
		r.handle("payments", h)
		r.start()
		return r, poison, o
	}
	t.Run("an error and a panic are tried again", func(t *testing.T) {
		t.Parallel()
		runs := 0
		r, poison, _ := poisonRig(t, func(*message.Message) error {
			switch runs++; runs {
			case 1:
				return errNotYet
			case 2:
				panic("not yet either")
			}
			return nil
		})
		r.publish("m1", "pay 7")
		r.publish("m1", "pay 7")
		require.Equal(t, 3, runs)
		require.Empty(t, poison())
	})
	t.Run("a message that had all its tries is in the poison queue, and free to be published again", func(t *testing.T) {
		t.Parallel()
		runs := 0
		r, poison, _ := poisonRig(t, func(*message.Message) error {
			runs++
			if runs > 3 {
				return nil
			}
			return errNotYet
		})
		r.publish("m1", "pay 7")
		require.Equal(t, 3, runs)
		require.Len(t, poison(), 1)
		require.Equal(t, "pay 7", string(poison()[0].Payload))
		require.Equal(t, "not yet", poison()[0].Metadata.Get(middleware.ReasonForPoisonedKey))
		require.Equal(t, "payments", poison()[0].Metadata.Get(middleware.PoisonedHandlerKey))
		r.publish("m1", "pay 7")
		require.Equal(t, 4, runs)
	})
	t.Run("a permanent failure is recorded, and not tried again", func(t *testing.T) {
		t.Parallel()
		runs := 0
		r, poison, _ := poisonRig(t, func(*message.Message) error {
			runs++
			return idem.Permanent(errors.New("card declined"))
		})
		r.publish("m1", "pay 7")
		r.publish("m1", "pay 7")
		require.Equal(t, 1, runs)
		require.Len(t, poison(), 2, "a letter that was lost on its way comes again, and so it may come twice")
		for _, l := range poison() {
			require.Equal(t, "card declined", l.Metadata.Get(middleware.ReasonForPoisonedKey))
		}
	})
	t.Run("a mismatch goes to the poison queue", func(t *testing.T) {
		t.Parallel()
		runs := 0
		r, poison, o := poisonRig(t, func(*message.Message) error { runs++; return nil })
		r.publish("m1", "pay 7")
		r.publish("m1", "pay 8")
		r.publish("", "pay 9")
		require.Equal(t, 1, runs)
		require.Len(t, poison(), 2)
		require.Equal(t, "pay 8", string(poison()[0].Payload))
		require.Contains(t, poison()[0].Metadata.Get(middleware.ReasonForPoisonedKey), "fingerprint")
		require.Contains(t, poison()[1].Metadata.Get(middleware.ReasonForPoisonedKey), "key")
		require.Equal(t, watermillidem.Stats{Runs: 1, Mismatched: 1, Refused: 1}, o.Stats())
	})
}

// call hands a message to the middleware as a router would.
func call(t *testing.T, o *watermillidem.Once, uuid string, h message.HandlerFunc) ([]*message.Message, error) {
	return o.Middleware(h)(message.NewMessageWithContext(t.Context(), uuid, []byte("pay 7")))
}

func TestInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOnce(t, openEngine(t, idem.Config{Lease: time.Minute}), watermillidem.Config{})
		release := make(chan struct{})
		runs := 0
		slow := func(*message.Message) ([]*message.Message, error) {
			runs++
			<-release
			return []*message.Message{message.NewMessage("r1", nil)}, nil
		}
		owner := make(chan error, 1)
		go func() {
			_, err := call(t, o, "m1", slow)
			owner <- err
		}()
		synctest.Wait()

		start := time.Now()
		_, err := call(t, o, "m1", slow)
		require.ErrorIs(t, err, idem.ErrInProgress)
		require.False(t, watermillidem.IsPoison(err))
		require.Equal(t, time.Second, time.Since(start), "it waits so long")
		var progress *idem.InProgressError
		require.ErrorAs(t, err, &progress)
		require.Positive(t, progress.Remaining)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = o.Middleware(slow)(message.NewMessageWithContext(ctx, "m1", []byte("pay 7")))
		require.ErrorIs(t, err, context.Canceled)

		time.Sleep(5 * time.Minute) // the lease is extended
		duplicate := make(chan []*message.Message, 1)
		go func() {
			produced, _ := call(t, o, "m1", slow)
			duplicate <- produced
		}()
		synctest.Wait()
		close(release)
		require.NoError(t, <-owner)
		require.Equal(t, "r1", (<-duplicate)[0].UUID)
		require.Equal(t, 1, runs)
		require.Equal(t, watermillidem.Stats{Runs: 1, Replays: 1, InProgress: 1, Refused: 1}, o.Stats())
	})
}

func TestPanicFreesTheMessageAndGoesOn(t *testing.T) {
	t.Parallel()
	o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
	require.PanicsWithValue(t, "a bug", func() {
		_, _ = call(t, o, "m1", func(*message.Message) ([]*message.Message, error) { panic("a bug") })
	})
	runs := 0
	_, err := call(t, o, "m1", func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
	require.NoError(t, err)
	require.Equal(t, 1, runs)
}

func TestLostClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := openEngine(t, idem.Config{Lease: time.Minute})
		o := newOnce(t, e, watermillidem.Config{})
		msg := message.NewMessageWithContext(t.Context(), "m1", []byte("pay 7"))
		produced, err := o.Middleware(func(m *message.Message) ([]*message.Message, error) {
			c, ok := watermillidem.ClaimFromCtx(m.Context())
			require.True(t, ok)
			require.Equal(t, "m1", c.Key)
			_, err := e.Forget(t.Context(), "", "m1")
			require.NoError(t, err)
			other, err := e.Begin(t.Context(), idem.Request{Key: "m1"})
			require.NoError(t, err)
			require.Equal(t, idem.Fresh, other.State)
			<-m.Context().Done()
			require.ErrorIs(t, context.Cause(m.Context()), idem.ErrClaimLost)
			return []*message.Message{message.NewMessage("r1", nil)}, nil
		})(msg)
		require.ErrorIs(t, err, idem.ErrNotRecorded)
		require.ErrorIs(t, err, idem.ErrClaimLost)
		require.Empty(t, produced)
		require.NoError(t, msg.Context().Err(), "it has its own context again")
		_, ok := watermillidem.ClaimFromCtx(msg.Context())
		require.False(t, ok)
	})
}

func TestUnfitResults(t *testing.T) {
	t.Parallel()
	for name, result := range map[string][]*message.Message{
		"too large to keep": {message.NewMessage("r1", make([]byte, 2000))},
		"a nil message":     {nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOnce(t, openEngine(t, idem.Config{MaxResponseBytes: 1000}), watermillidem.Config{})
			runs := 0
			h := func(*message.Message) ([]*message.Message, error) { runs++; return result, nil }
			produced, err := call(t, o, "m1", h)
			require.NoError(t, err)
			require.Equal(t, result, produced, "the owner's are as the handler returned them")
			_, err = call(t, o, "m1", h)
			require.ErrorIs(t, err, idem.ErrTruncated)
			require.True(t, watermillidem.IsPoison(err))
			require.Equal(t, 1, runs)
		})
	}
}

func TestIsPoisonSaysNothingOfTheHandlersOwnUseOfIdem(t *testing.T) {
	t.Parallel()
	o := newOnce(t, openEngine(t, idem.Config{}), watermillidem.Config{})
	for _, inner := range []error{idem.ErrMismatch, &idem.FailedError{}} {
		_, err := call(t, o, "m1", func(*message.Message) ([]*message.Message, error) { return nil, inner })
		require.ErrorIs(t, err, inner)
		require.False(t, watermillidem.IsPoison(err))
	}
	_, err := call(t, o, "m1", func(*message.Message) ([]*message.Message, error) { return nil, idem.Permanent(errNotYet) })
	require.ErrorIs(t, err, errNotYet)
	require.True(t, watermillidem.IsPoison(err))
}

func TestConfig(t *testing.T) {
	t.Parallel()
	e := openEngine(t, idem.Config{})
	_, err := watermillidem.New(nil, watermillidem.Config{})
	require.ErrorContains(t, err, "nil store")
	_, err = watermillidem.New(e, watermillidem.Config{Lease: -1})
	require.ErrorContains(t, err, "Config.Lease is -1ns, want zero or more")
	_, err = watermillidem.New(e, watermillidem.Config{TTL: -1})
	require.ErrorContains(t, err, "Config.TTL is -1ns, want zero or more")

	t.Run("Wait, negative: not at all; and the times of the claim and the record", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := openEngine(t, idem.Config{})
			o := newOnce(t, e, watermillidem.Config{Wait: -1, TTL: time.Minute, Lease: 90 * time.Second,
				Fingerprint: func(*message.Message) idem.Fingerprint { return idem.Fingerprint{} }})
			out, err := e.Begin(t.Context(), idem.Request{Key: "m1"})
			require.NoError(t, err)
			start := time.Now()
			_, err = call(t, o, "m1", message.PassthroughHandler)
			require.ErrorIs(t, err, idem.ErrInProgress)
			require.Equal(t, start, time.Now())
			require.NoError(t, e.Abandon(t.Context(), out.Claim))
			_, err = call(t, o, "m1", func(m *message.Message) ([]*message.Message, error) {
				held, failed := e.Begin(m.Context(), idem.Request{Key: "m1"})
				require.Equal(t, 90*time.Second, held.Remaining)
				return nil, failed
			})
			require.NoError(t, err)
			rec, ok, err := e.Lookup(t.Context(), "", "m1")
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, time.Minute, rec.Remaining)
		})
	})
}
