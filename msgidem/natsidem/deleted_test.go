package natsidem_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/msgidem/natsidem"
)

// Nobody tells the client.
func TestSourceFailsWhenItsConsumerWasDeletedUnnoticed(t *testing.T) {
	b := startBroker(t)
	src, err := natsidem.New(t.Context(), b.consumer("a", time.Minute), natsidem.Config{})
	require.NoError(t, err)
	require.NoError(t, b.deleted("a"), "before the source asked for anything")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = src.Next(ctx)
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
}
