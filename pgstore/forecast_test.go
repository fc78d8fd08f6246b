package pgstore_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

// statements counts those that are sent for a Begin: to insert a new key, to look at a known one, and to do either.
type statements struct{ inserts, looks, begins atomic.Int64 }

func (c *statements) option() poolOption {
	watch := &spy{ended: func(sql string, _ error) {
		switch {
		case strings.Contains(sql, "claim_1"):
			c.begins.Add(1)
		case strings.Contains(sql, "nextval"):
			c.inserts.Add(1)
		case strings.Contains(sql, "nonce <>"):
			c.looks.Add(1)
		}
	}}
	return watch.option()
}

// require checks how many there were since the last time.
func (c *statements) require(t *testing.T, inserts, looks, begins int64) {
	t.Helper()
	require.Equal(t, inserts, c.inserts.Swap(0), "inserts")
	require.Equal(t, looks, c.looks.Swap(0), "looks")
	require.Equal(t, begins, c.begins.Swap(0), "begins")
}

// New keys cost a round trip, and so do known ones once they are expected.
func TestRoundTripsOfBegin(t *testing.T) {
	var c statements
	store := newStore(t, newPool(t, databaseURL, c.option()), pgstore.Config{PollOnly: true})
	known := request()
	claim(t, store, known)
	for range 20 {
		claim(t, store, request())
	}
	c.require(t, 21, 0, 0)
	for range 20 {
		begin(t, store, known, idem.InProgress)
	}
	c.require(t, 7, 13, 7) // when a third of the keys are known it is cheaper to look
	for range 20 {
		claim(t, store, request())
	}
	c.require(t, 7, 13, 13)
}
