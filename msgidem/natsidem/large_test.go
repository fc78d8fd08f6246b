package natsidem_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// A message as large as the server or the stream takes it has no room for all headers of a letter.
func TestLargePoison(t *testing.T) {
	t.Parallel()
	const ofStream = 10_000
	long := strings.Repeat("t", 500)
	for _, c := range []struct {
		name   string
		header nats.Header
		room   int  // in bytes, besides the payload
		stream bool // it is the stream of letters that takes no more
		want   func(nats.Header)
	}{
		{"a long reason is cut", nats.Header{"Nats-Msg-Id": {"p1"}, "Trace": {"t1"}}, 700, false, func(h nats.Header) {
			require.Equal(t, []string{"t1", "1"}, []string{h.Get("Trace"), h.Get(natsidem.SequenceHeader)})
			require.Equal(t, "msgidem: attempts used up: can't be done: "+strings.Repeat("x", 22), h.Get(natsidem.ReasonHeader))
		}},
		{"also for the stream's limit", nats.Header{"Nats-Msg-Id": {"p1"}, "Trace": {"t1"}}, 700, true, func(h nats.Header) {
			require.Equal(t, []string{"t1", "1"}, []string{h.Get("Trace"), h.Get(natsidem.SequenceHeader)})
		}},
		{"then the headers of the message go", nats.Header{"Nats-Msg-Id": {"p1"}, "Trace": {long}}, 560, false, func(h nats.Header) {
			require.Equal(t, []string{"", "p1", "orders/billing", "orders.new", "orders", "1"}, []string{
				h.Get("Trace"), h.Get(natsidem.IDHeader), h.Get(natsidem.ScopeHeader), h.Get(natsidem.SubjectHeader),
				h.Get(natsidem.StreamHeader), h.Get(natsidem.SequenceHeader),
			})
			require.Equal(t, "orders/billing/orders/1", h.Get(jetstream.MsgIDHeader))
		}},
		{"and at last those of the letter", nil, 0, false, func(h nats.Header) { require.Empty(t, h) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := startBroker(t)
			most := int(b.js.Conn().MaxPayload())
			if c.stream {
				most = ofStream
				_, err := b.js.UpdateStream(t.Context(), jetstream.StreamConfig{
					Name: "dead", Subjects: []string{"dead.>"}, Storage: jetstream.MemoryStorage, MaxMsgSize: ofStream, Duplicates: 100 * time.Millisecond,
				})
				require.NoError(t, err)
			}
			cons := b.consumer("billing", time.Minute)
			s := b.consume(cons, openEngine(t, idem.Config{}), msgidem.Config{MaxAttempts: 2},
				func(context.Context, msgidem.Message, idem.Claim) error {
					return errors.New("can't be done: " + strings.Repeat("x", 900))
				})
			m := &nats.Msg{Subject: "orders.new", Header: c.header, Data: bytes.Repeat([]byte("p"), most-c.room)}
			_, err := b.js.PublishMsg(t.Context(), m)
			require.NoError(t, err)
			l := b.letters(1)[0]
			b.settled(cons)
			require.Equal(t, m.Data, l.Data)
			c.want(l.Header)
			require.Equal(t, 1, s.seen(msgidem.DeadLettered))
			require.Zero(t, s.handler.Stats().HookErrors)
		})
	}
}
