//go:build amd64 || arm64

package idem

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// What every request touches of a shard lies on as few cache lines as it can. Fields are padded for words of 64 bits; where
// words have 32, they lie closer together.
func TestShardLines(t *testing.T) {
	const line = 64
	var s shard
	require.Zero(t, unsafe.Sizeof(s)%line, "bytes: the next shard begins on a line")

	first := unsafe.Offsetof(s.counts) + unsafe.Offsetof(s.counts.fresh)
	require.Zero(t, first%line, "the first of counts that a request may touch begins a line")
	require.Zero(t, (unsafe.Offsetof(s.index))%line, "one line has counts, mutex and engine, the next one the index")
	last := unsafe.Offsetof(s.wheel) + unsafe.Offsetof(s.wheel.inUse)
	require.Less(t, last-first, uintptr(4*line), "bytes up to the wheel's slots")

	views := unsafe.Offsetof(s.arena) + unsafe.Offsetof(s.arena.memory)
	total := unsafe.Offsetof(s.arena) + unsafe.Offsetof(s.arena.bytes)
	require.Equal(t, views/line, total/line, "memory, slabs and bytes are on one line")

	for name, at := range map[string]uintptr{"hot": unsafe.Offsetof(s.hot), "hotHits": unsafe.Offsetof(s.hotHits)} {
		require.Zero(t, at%(2*line), name)
	}
	require.GreaterOrEqual(t, unsafe.Offsetof(s.counts)-unsafe.Offsetof(s.hotHits), uintptr(2*line), "processors fetch lines in pairs")
	require.Equal(t, uintptr(line/2), unsafe.Sizeof(memory{}), "two of memory to a line")
	require.Equal(t, uintptr(line/2), unsafe.Sizeof(slab{}), "two slabs to a line")

	var e Engine
	require.GreaterOrEqual(t, unsafe.Offsetof(e.waiting)-unsafe.Offsetof(e.tokens), uintptr(2*line), "tokens have a line of their own")
}
