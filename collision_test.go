package idem

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/stretchr/testify/require"
)

// The primes of xxhash64, and what undoes a multiplication by them modulo 2^64.
const (
	prime1 = 11400714785074694791
	prime2 = 14029467366897019727
)

func inverse(p uint64) uint64 {
	x := p // right in the lowest 3 bits; each step doubles that
	for range 5 {
		x *= 2 - p*x
	}
	return x
}

// mint returns a key of 64 bytes with the same xxhash as all others that it returns. The hash runs four lanes
// over the key, each of which takes one word of either half; the second word of a lane can be chosen so that
// it ends in the state that the caller wants, whatever the first one was.
func mint(rnd *rand.Rand) string {
	var key [64]byte
	lanes := [4]uint64{prime1, prime2, 0, 0} // the states at the start; the constants would overflow if added here
	lanes[0] += prime2
	lanes[3] -= prime1
	for i, state := range lanes {
		first := rnd.Uint64()
		state = bits.RotateLeft64(state+first*prime2, 31) * prime1
		const target = 0x1234567
		second := (bits.RotateLeft64(target*inverse(prime1), -31) - state) * inverse(prime2)
		binary.LittleEndian.PutUint64(key[8*i:], first)
		binary.LittleEndian.PutUint64(key[32+8*i:], second)
	}
	return string(key[:])
}

// probes returns how many slots a look-up in s reads, on average and at most.
func probes(s *shard) (average float64, most int) {
	sum := 0
	for first := 0; first < len(s.index.tables); first += 1 << (s.index.depth - s.index.tables[first].depth) {
		t := s.index.tables[first]
		for i, slot := range t.slots {
			if slot != 0 {
				n := (i-t.home(uint32(slot>>32)))&(len(t.slots)-1) + 1
				sum += n
				most = max(most, n)
			}
		}
	}
	return float64(sum) / float64(s.index.n), most
}

// Unseeded xxhash can be inverted. Who does that chooses the shard, and gains nothing else.
func TestMintedCollisions(t *testing.T) {
	const n = 20_000
	rnd := rand.New(rand.NewPCG(1, 2))
	e, usual := openForTest(t, Config{}), openForTest(t, Config{Shards: 1})
	keys, random := make([]string, n), make([]byte, 64)
	for i := range keys {
		keys[i] = mint(rnd)
		if xxhash.Sum64String(keys[i]) != xxhash.Sum64String(keys[0]) {
			t.Fatalf("%x has another hash", keys[i])
		}
		keep(t, e, keys[i], fmt.Sprint(i), time.Hour)
		for j := 0; j < len(random); j += 8 {
			binary.LittleEndian.PutUint64(random[j:], rnd.Uint64())
		}
		keep(t, usual, string(random), "b", time.Hour)
	}
	s := e.shardOf("", keys[0])
	require.Equal(t, n, s.index.n, "all are in one shard")
	for i, key := range keys {
		out, err := e.Begin(t.Context(), Request{Key: key})
		if err != nil || string(out.Response.Body) != fmt.Sprint(i) {
			t.Fatalf("%x: %v, %q, %v", key, out.State, out.Response.Body, err)
		}
	}
	checkInvariants(t, e)

	average, most := probes(s)
	usually, mostly := probes(&usual.shards[0])
	t.Logf("slots read: %.2f on average and %d at most, of random keys %.2f and %d", average, most, usually, mostly)
	require.Less(t, average, 1.5*usually)
	require.Less(t, most, 3*mostly)
	require.Less(t, float64(s.index.bytes), 2.1*float64(usual.shards[0].index.bytes))
}

// BenchmarkMinted begins 20,000 operations whose keys all have one xxhash, beside as many with random keys. All are
// in one shard in either case, since that is all that the minted ones achieve.
func BenchmarkMinted(b *testing.B) {
	const n = 20_000
	rnd := rand.New(rand.NewPCG(1, 2))
	minted, random := make([]string, n), make([]string, n)
	for i := range n {
		var key [64]byte
		for j := 0; j < len(key); j += 8 {
			binary.LittleEndian.PutUint64(key[j:], rnd.Uint64())
		}
		minted[i], random[i] = mint(rnd), string(key[:])
	}
	for name, keys := range map[string][]string{"random": random, "minted": minted} {
		b.Run("keys="+name, func(b *testing.B) {
			for range b.N {
				e, err := New(Config{Shards: 1})
				require.NoError(b, err)
				for _, key := range keys {
					out, err := e.Begin(context.Background(), Request{Key: key})
					if err != nil || out.State != Fresh {
						b.Fatalf("begin: %v, %v", out.State, err)
					}
				}
				require.NoError(b, e.Close())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/begin")
		})
	}
}

// Scopes are no way to mint collisions either: not those that equal their keys, nor those that change places with them.
func TestScopesMintNoCollisions(t *testing.T) {
	e := openForTest(t, Config{Shards: 64})
	hashes, shards := map[uint32]bool{}, map[*shard]bool{}
	for i := range 1000 {
		name := fmt.Sprint(i)
		hashes[e.hash(name, name)] = true
		shards[e.shardOf(name, name)] = true
	}
	require.Greater(t, len(hashes), 990)
	require.Greater(t, len(shards), 50)
	require.NotEqual(t, e.hash("a", "b"), e.hash("b", "a"))
}
