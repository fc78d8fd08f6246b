package pgstore_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/pgstore"
)

func TestNewRefusesABadConfig(t *testing.T) {
	pool := newPool(t, databaseURL)
	for want, cfg := range map[string]pgstore.Config{
		"Config.TTL is -1ns, want zero, for the default, or more":          {TTL: -1},
		"Config.Lease is -1s, want zero, for the default, or more":         {Lease: -time.Second},
		"Config.OnLeaseExpiry is 2, want TakeOver or Hold":                 {OnLeaseExpiry: idem.Hold + 1},
		"Config.MaxKeyBytes is 326, want 1 to 325":                         {MaxKeyBytes: 326},
		"Config.MaxResponseBytes is -1, want 1 to 536870912":               {MaxResponseBytes: -1},
		"Config.MaxWaiters is -1, want 1 to 2147483647":                    {MaxWaiters: -1},
		"Config.MaxWaitersPerKey is -2, want 1 to 2147483647":              {MaxWaitersPerKey: -2},
		"schema name of 64 bytes, want at most 63":                         {Schema: strings.Repeat("s", 64)},
		`schema name "a\x00b", want UTF-8 without NUL, line breaks and $$`: {Schema: "a\x00b"},
		`schema name "\xff", want UTF-8 without NUL, line breaks and $$`:   {Schema: "\xff"},
		`schema name "a\nb", want UTF-8 without NUL, line breaks and $$`:   {Schema: "a\nb"},
		`schema name "a\rb", want UTF-8 without NUL, line breaks and $$`:   {Schema: "a\rb"},
		`schema name "a$$b", want UTF-8 without NUL, line breaks and $$`:   {Schema: "a$$b"},
	} {
		store, err := pgstore.New(pool, cfg)
		require.EqualError(t, err, "pgstore: "+want)
		require.Nil(t, store)
	}
	err := pgstore.Migrate(t.Context(), pool, "a$$b")
	require.EqualError(t, err, `pgstore: schema name "a$$b", want UTF-8 without NUL, line breaks and $$`)
	_, err = pgstore.New(nil, pgstore.Config{})
	require.EqualError(t, err, "pgstore: nil pool")
}

// The longest scope and key that may be, each byte of which has to be escaped, must fit into the index.
func TestLongestKeys(t *testing.T) {
	const most = 325
	store := newStore(t, newPool(t, databaseURL), pgstore.Config{MaxKeyBytes: most, PollOnly: true})
	// Bytes at random, so that it is not compression that makes them fit; none is ASCII, nor part of a character.
	scope, key := make([]byte, most), make([]byte, most)
	_, _ = rand.Read(scope) // it never fails
	_, _ = rand.Read(key)
	for i := range most {
		scope[i], key[i] = scope[i]&0x3f|0x80, key[i]&0x3f|0x80
	}
	req := idem.Request{Scope: string(scope), Key: string(key)}
	out, err := store.Begin(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, store.Complete(t.Context(), out.Claim, idem.Response{Status: 200}))
	out, err = store.Begin(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, idem.Replay, out.State)
	req.Key += "k"
	_, err = store.Begin(t.Context(), req)
	require.ErrorIs(t, err, idem.ErrKey)
	require.ErrorContains(t, err, "key has 326 bytes, want 1 to 325")
}
