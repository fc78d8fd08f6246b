package natsidem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/seed-5bb5eb37/idem/msgidem"
)

// askFor is how long one request for a single message is open. It is how much longer Next may take than its context,
// and a source that has nothing to read asks twice a second.
const askFor = 500 * time.Millisecond

// nextOne is Next for a consumer with MaxDeliver. The server counts a delivery when it sends it, and after the last
// one it drops the message without a word, whatever it is told. So it must not send what nobody is about to handle:
// each request is for one message, and is seen through to its end, also when ctx ends meanwhile. A message that comes
// then is returned all the same; to give it back would cost a delivery, and might be to lose it.
func (s *Source) nextOne(ctx context.Context) (msgidem.Delivery, error) {
	for ctx.Err() == nil {
		if s.closed {
			return nil, io.EOF
		}
		m, err := s.fetchOne()
		switch {
		case m != nil:
			return s.Delivery(m), nil
		case errors.Is(err, nats.ErrConnectionClosed):
			return nil, fmt.Errorf("natsidem: %w", jetstream.ErrConnectionClosed)
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrBadRequest):
			return nil, fmt.Errorf("natsidem: %w", err)
		case err != nil: // the server is away, or changes its leader
			pause(ctx)
		}
		if gone := s.check(ctx); gone != nil {
			return nil, gone
		}
	}
	return nil, context.Cause(ctx)
}

// fetchOne returns nil when there was no message.
func (s *Source) fetchOne() (jetstream.Msg, error) {
	batch, err := s.pull.Fetch(1, jetstream.FetchMaxWait(askFor))
	if err != nil {
		return nil, err
	}
	if m, ok := <-batch.Messages(); ok {
		return m, nil
	}
	return nil, batch.Error()
}

// pause keeps nextOne from asking a server that answers at once, and with an error, as fast as it can.
func pause(ctx context.Context) {
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
