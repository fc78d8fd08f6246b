package idem

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// An indexFuzz is an index and a map of what is in it.
type indexFuzz struct {
	t *testing.T
	tape
	x    index
	refs map[uint32][]ref // by hash
	all  []indexPair      // the same, in the order in which they came
	n    uint32           // counts the refs

	changed map[uint32]bool // hashes of which pairs came or went since the walk over the pages began
}

type indexPair struct {
	h uint32
	r ref
}

const (
	fuzzPairs = 2000 // enough to split tables over several levels
	fuzzEqual = 840  // of one hash: enough to grow past maxTable

	// A table splits when it has 4/5 of maxTable, and keeps at most 15/16 of that in one half: of
	// fuzzPairs so many are left after at most 14 splits.
	fuzzDir = 1 << 14
)

// FuzzIndex compares an index with a map, whatever the hashes are.
func FuzzIndex(f *testing.F) {
	for kind := range byte(7) {
		f.Add([]byte{0, kind, 3, 0, 0, kind, 4, 1, 2, 0, 1, 2, 3, 0, kind, 2, 9, 3, 1, 1, 4, 1, 3, 4})
		f.Add([]byte{0, 0, 4, 0, 0, kind, 4, 1, 0, kind, 4, 255, 0, kind, 4, 3, 1, 0, 4, 2, 7, 1, 1, 4, 3, 0, 1, 0, 4})
	}
	f.Add([]byte{0, 0, 4, 0, 0, 0, 4, 9, 1, 0, 4, 1, 0, 3, 3, 1, 1, 0, 3, 1, 1, 0, 2}) // tables join between two pages
	f.Fuzz(func(t *testing.T, input []byte) {
		x := &indexFuzz{t: t, tape: input, refs: map[uint32][]ref{}, changed: map[uint32]bool{}}
		steps := []func(){x.insert, x.remove, x.replace, x.pages}
		for n := 0; len(x.tape) > 0 && n < 25; n++ {
			steps[x.next()%len(steps)]()
			x.check()
		}
		x.removeAll(len(x.all))
		x.check()
		require.LessOrEqual(t, x.x.bytes, minTable*8, "an empty index is small")
		require.LessOrEqual(t, len(x.x.tables), 1)
	})
}

func (x *indexFuzz) count() int { return pick(&x.tape, 1, 2, 60, 300, fuzzEqual) }

// insert adds pairs whose hashes are spread evenly, or are one and the same, or differ in a few bits only.
func (x *indexFuzz) insert() {
	kind, n, salt := x.next()%7, x.count(), uint32(x.next())
	for i := range uint32(n) {
		h := [...]uint32{
			(x.n + salt) * 0x9e3779b1, salt * 0x01010101, salt<<24 | i, i<<20 | salt, math.MaxUint32 - i, 1 << (i % 32), i << 31 >> (salt % 32),
		}[kind]
		if len(x.all) < fuzzPairs && len(x.refs[h]) < fuzzEqual {
			x.n++
			x.add(h, ref(x.n))
		}
	}
}

func (x *indexFuzz) add(h uint32, r ref) {
	x.changed[h] = true
	x.x.insert(h, r)
	x.refs[h] = append(x.refs[h], r)
	x.all = append(x.all, indexPair{h, r})
}

func (x *indexFuzz) remove() {
	from := x.next()
	n := x.count()
	if from%3 == 1 {
		slices.Reverse(x.all)
	}
	if from%3 == 2 {
		slices.SortFunc(x.all, func(a, b indexPair) int { return cmp.Compare(a.h, b.h) })
	}
	x.removeAll(n)
}

// removeAll removes the first n pairs.
func (x *indexFuzz) removeAll(n int) {
	n = min(n, len(x.all))
	for _, p := range x.all[:n] {
		x.changed[p.h] = true
		x.x.remove(p.h, p.r)
		x.refs[p.h] = slices.DeleteFunc(x.refs[p.h], func(r ref) bool { return r == p.r })
		if len(x.refs[p.h]) == 0 {
			delete(x.refs, p.h)
		}
	}
	x.all = slices.Delete(x.all, 0, n)
}

func (x *indexFuzz) replace() {
	i := x.next() * 37
	if len(x.all) == 0 {
		return
	}
	p := &x.all[i%len(x.all)]
	x.n++
	x.x.replace(p.h, p.r, ref(x.n))
	x.refs[p.h][slices.Index(x.refs[p.h], p.r)] = ref(x.n)
	p.r = ref(x.n)
}

// pages walks over the index while pairs come and go, and checks that hashes of which none came or went
// were seen as often as there are pairs.
func (x *indexFuzz) pages() {
	clear(x.changed)
	seen := map[uint32]int{}
	for cursor, more := uint32(0), true; more; {
		hashes, next := x.x.page(cursor, nil)
		require.True(x.t, next == 0 || next > cursor, "the next page is %#x after %#x", next, cursor)
		for _, h := range hashes {
			seen[h]++
		}
		if x.flag() {
			pick(&x.tape, x.insert, x.remove)()
		}
		cursor, more = next, next != 0
	}
	for h, refs := range x.refs {
		if !x.changed[h] && len(refs) != seen[h] {
			require.Equal(x.t, len(refs), seen[h], "hash %#x on the pages", h)
		}
	}
}

// check looks for every hash, and for one beside it.
func (x *indexFuzz) check() {
	require.Equal(x.t, len(x.all), x.x.n)
	require.LessOrEqual(x.t, len(x.x.tables), fuzzDir, "splitting does not help equal hashes")
	for h, refs := range x.refs {
		if found := x.find(h); !slices.Equal(refs, found) {
			slices.Sort(found)
			require.Equal(x.t, slices.Sorted(slices.Values(refs)), found, "hash %#x", h)
		}
		if beside := h ^ 0x8001; len(x.find(beside)) != len(x.refs[beside]) {
			require.Equal(x.t, x.refs[beside], x.find(beside), "hash %#x", beside)
		}
	}
	requireSound(x.t, func(f *faults) { f.same(len(f.index(&shard{index: x.x})), len(x.all), "pairs") })
}

func (x *indexFuzz) find(h uint32) (refs []ref) {
	p := x.x.probe(h)
	for r := p.next(); r != 0; r = p.next() {
		refs = append(refs, r)
	}
	return refs
}
