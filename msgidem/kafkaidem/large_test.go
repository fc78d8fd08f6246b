package kafkaidem_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/msgidem"
	"github.com/seed-5bb5eb37/idem/msgidem/kafkaidem"
)

// The largest batches: what a producer of franz-go makes by default, and what brokers take by default.
const (
	mostOfProducer = 1_000_012
	mostOfBroker   = 1_048_588
)

// A message as large as the producer or the broker takes it has no room for all headers of a letter.
func TestLargePoison(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("t", 500)
	place := []string{"p1", "billing", "orders", "0", "0"}
	for _, c := range []struct {
		name  string
		trace string // a header of the message
		id    string
		room  int // in bytes, besides the payload
		want  []string
	}{
		{"a long reason is cut", "t1", "p1", 700, append([]string{"t1", "msgidem: attempts used up: can't be done: " + strings.Repeat("x", 22)}, place...)},
		{"then the headers of the message go", long, "p1", 660, append([]string{"", "msgidem: attempts used up: can't be done: " + strings.Repeat("x", 22)}, place...)},
		{"and at last those of the letter", "", "", 100, make([]string, 7)},
	} {
		for side, most := range map[string]int{"producer": mostOfProducer, "broker": mostOfBroker} {
			t.Run(c.name+", "+side, func(t *testing.T) {
				t.Parallel()
				b := startBroker(t, 1)
				p := b.producer
				if side == "broker" { // a producer that leaves it to the broker
					var err error
					p, err = kgo.NewClient(kgo.SeedBrokers(b.cluster.ListenAddrs()...), kgo.ProducerBatchMaxBytes(2*mostOfBroker))
					require.NoError(t, err)
					t.Cleanup(p.Close)
				}
				s := b.consume(setup{
					store: openEngine(t, idem.Config{}), handler: msgidem.Config{MaxAttempts: 2, DeadLetter: kafkaidem.DeadLetters(p, "dead")},
					fn: func(_ context.Context, m msgidem.Message, _ idem.Claim) error {
						if string(m.Payload) == "pay 7" {
							return nil
						}
						return errors.New("can't be done: " + strings.Repeat("x", 900))
					},
				})
				r := &kgo.Record{Topic: "orders", Value: incompressible(most - c.room)}
				if c.id != "" {
					r.Headers = []kgo.RecordHeader{{Key: "Trace", Value: []byte(c.trace)}, {Key: kafkaidem.DefaultIDHeader, Value: []byte(c.id)}}
				}
				require.NoError(t, p.ProduceSync(t.Context(), r).FirstErr())
				b.produce(0, "p2", "pay 7")
				b.commits("billing", 0, 2) // the partition goes on
				l := b.letters(1)[0]
				require.Equal(t, r.Value, l.Value)
				require.Equal(t, c.want, []string{
					header(l, "Trace"), header(l, kafkaidem.ReasonHeader), header(l, kafkaidem.IDHeader), header(l, kafkaidem.ScopeHeader),
					header(l, kafkaidem.TopicHeader), header(l, kafkaidem.PartitionHeader), header(l, kafkaidem.OffsetHeader),
				})
				require.Zero(t, s.handler.Stats().HookErrors)
			})
		}
	}
}

// incompressible returns n bytes, the same each time, that the client can't make fewer.
func incompressible(n int) []byte {
	out := make([]byte, 0, n+sha256.Size)
	for i := 0; len(out) < n; i++ {
		sum := sha256.Sum256([]byte(strconv.Itoa(i)))
		out = append(out, sum[:]...)
	}
	return out[:n]
}
