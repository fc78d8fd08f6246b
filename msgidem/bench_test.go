package msgidem_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
)

// A silent delivery costs nothing, so that what is measured is the handler.
type silent struct{ m msgidem.Message }

func (s *silent) Message() msgidem.Message { return s.m }
func (s *silent) Can() msgidem.Capability {
	return msgidem.CanNak | msgidem.CanDelay | msgidem.CanTerm | msgidem.CanHeartbeat
}
func (*silent) Ack(context.Context) error                     { return nil }
func (*silent) NakAfter(context.Context, time.Duration) error { return nil }
func (*silent) Term(context.Context, string) error            { return nil }
func (*silent) Heartbeat(context.Context) error               { return nil }

// deliveries are n messages of their own IDs, made outside of what is measured.
func deliveries(n int) []silent {
	ds := make([]silent, n)
	for i := range ds {
		ds[i].m = msgidem.Message{
			ID: fmt.Sprintf("0192f7c6-5b1e-7c3a-9f00-1%011d", i), Scope: "billing",
			Payload: []byte(`{"account":"4711","amount":1999,"currency":"EUR"}`),
			Attempt: 1, AckWait: 30 * time.Second,
		}
	}
	return ds
}

// BenchmarkHandle compares a handler that is called as it is (bare) with one that is called once per message on the
// engine (fresh), and with a message that was handled before (duplicate). What of it is the store's own work, the
// digest of the payload included, is told by calling the store directly (store).
func BenchmarkHandle(b *testing.B) {
	fn := func(context.Context, msgidem.Message, idem.Claim) error { return nil }
	b.Run("bare", func(b *testing.B) {
		benchmark(b, nil, func(ctx context.Context, d *silent) bool {
			return fn(ctx, d.Message(), idem.Claim{}) == nil && d.Ack(ctx) == nil
		})
	})
	engine, err := idem.New(idem.Config{})
	require.NoError(b, err)
	defer func() { _ = engine.Close() }()
	h, err := msgidem.New(engine, fn, msgidem.Config{})
	require.NoError(b, err)
	b.Run("store", func(b *testing.B) {
		benchmark(b, engine, func(ctx context.Context, d *silent) bool {
			out, err := engine.Begin(ctx, idem.Request{Scope: d.m.Scope, Key: d.m.ID, Fingerprint: idem.FingerprintOf(d.m.Payload)})
			return err == nil && fn(ctx, d.m, out.Claim) == nil && engine.Complete(ctx, out.Claim, idem.Response{}) == nil
		})
	})
	b.Run("fresh", func(b *testing.B) {
		benchmark(b, engine, func(ctx context.Context, d *silent) bool { return h.Handle(ctx, d).Result == msgidem.Done })
	})
	b.Run("duplicate", func(b *testing.B) {
		benchmark(b, nil, func(ctx context.Context, d *silent) bool {
			result := h.Handle(ctx, d).Result
			return result == msgidem.Skipped || result == msgidem.Done // the first time around
		})
	})
}

// benchmark measures handle. With an engine no message comes twice: it is made to forget them outside of what is
// measured.
func benchmark(b *testing.B, engine *idem.Engine, handle func(context.Context, *silent) bool) {
	b.ReportAllocs()
	const batch = 1 << 14
	ds, i, ctx := deliveries(batch), 0, b.Context()
	forget := func() {
		for k := range ds {
			if engine != nil {
				_, err := engine.Forget(ctx, ds[k].m.Scope, ds[k].m.ID)
				require.NoError(b, err)
			}
		}
	}
	forget()
	for b.Loop() {
		if i == batch {
			b.StopTimer()
			forget()
			i = 0
			b.StartTimer()
		}
		if !handle(ctx, &ds[i]) {
			b.Fatal("not as expected")
		}
		i++
	}
}
