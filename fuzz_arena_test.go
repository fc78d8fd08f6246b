package idem

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An arenaFuzz is an arena and the list of what was put into it.
type arenaFuzz struct {
	t *testing.T
	tape
	a     arena
	cells []arenaCell
	gone  []arenaCell // large cells that were released, and are still being read
	bytes int         // of cells
	n     byte
}

// An arenaCell is a cell that a record fills from end to end with a pattern of its own.
type arenaCell struct {
	r    ref
	rec  record
	name string
	fill byte
}

// FuzzArena checks that live cells do not overlap, that nothing of what was freed can be read through a new
// record, that memory is given back, and that the bytes of a large record outlive it.
func FuzzArena(f *testing.F) {
	f.Add([]byte{0, 0, 128, 0, 1, 0, 1, 0, 0, 0, 0, 0, 128, 0, 0, 0, 128, 2, 1, 0, 1, 2, 0, 0, 0, 0, 128, 1}) // empties a slab
	f.Add([]byte{0, 4, 128, 2, 0, 4, 60, 2, 1, 7, 1, 2, 3, 1, 0, 0, 0, 0, 4, 128, 3, 1, 9, 1, 3, 200, 1, 3, 0, 0, 0, 4, 128, 1})
	f.Add([]byte{0, 8, 128, 1, 2, 5, 0, 7, 128, 1, 1, 0, 1, 1, 0, 0, 0, 9, 128, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0, 2, 255}) // large ones
	f.Add(bytes.Repeat([]byte{0, 2, 130, 3, 0, 5, 255, 1, 1, 3, 1, 2, 40, 1, 1, 2, 0}, 12))
	f.Fuzz(func(t *testing.T, input []byte) {
		a := &arenaFuzz{t: t, tape: input}
		steps := []func(){a.alloc, a.release, a.adopt}
		for n := 0; len(a.tape) > 0 && n < 60; n++ {
			steps[a.next()%len(steps)]()
			requireSound(t, func(f *faults) { f.equal(f.arena(&a.a), len(a.cells), "cells", 0) })
			a.spares()
		}
		for _, c := range slices.Concat(a.cells, a.gone) {
			a.verify(c)
		}
		for len(a.cells) > 0 {
			a.releaseAt(len(a.cells) - 1)
		}
		requireSound(t, func(f *faults) { f.equal(f.arena(&a.a), 0, "cells", 0) })
		a.spares()
	})
}

// spares checks what is kept of a class that is not in use, and that the table of slabs ends with a slab.
func (a *arenaFuzz) spares() {
	for i := range a.a.byClass {
		if c := &a.a.byClass[i]; c.used == 0 {
			require.LessOrEqual(a.t, c.bytes, minSlab, "class %d keeps a spare that is too large", i)
		}
	}
	if n := len(a.a.slabs); n > 1 {
		require.NotNil(a.t, a.a.memory[n-1].buf)
	}
}

// alloc takes some cells of a size at an edge of the classes or of the slabs.
func (a *arenaFuzz) alloc() {
	size := pick(&a.tape, recordHeader+1, 2*recordHeader, 512, 513, 4<<10, 8<<10, maxShared-1, maxShared, maxShared+1, 64<<10)
	size = max(size+a.next()-128, recordHeader+1)
	for range pick(&a.tape, 1, 3, 40, 300) {
		if a.bytes > 4<<20 {
			return
		}
		grown := a.a.bytes + a.a.growth(size)
		r := a.a.alloc(size)
		require.Equal(a.t, grown, a.a.bytes, "bytes")
		require.Len(a.t, a.a.at(r), cellSize(size))
		require.Equal(a.t, size > maxShared, a.a.large(r))
		a.fill(r)
	}
}

// adopt makes memory of the caller's a cell.
func (a *arenaFuzz) adopt() {
	buf := make([]byte, maxShared+1+a.next())
	before := a.a.bytes
	r := a.a.adopt(buf)
	require.Same(a.t, &buf[0], &a.a.at(r)[0])
	require.Equal(a.t, before+len(buf), a.a.bytes)
	a.fill(r)
}

// fill writes a record into a new cell. In between it looks for what was there before.
func (a *arenaFuzz) fill(r ref) {
	a.n++
	c := arenaCell{r: r, rec: a.a.at(r), name: strings.Repeat("n", 1+int(a.n)%(len(a.a.at(r))-recordHeader)), fill: a.n}
	require.Equal(a.t, len(c.rec), cap(c.rec), "the cell reaches into the next one")
	c.rec.init("", c.name)
	require.Equal(a.t, make([]byte, 52), []byte(c.rec[:52]), "the header before the lengths")
	require.Empty(a.t, c.rec.payload(), "a new record shows what the cell held")
	require.True(a.t, c.rec.named("", c.name) && c.rec.state() == 0)
	payload := bytes.Repeat([]byte{a.n}, len(c.rec)-c.rec.nameEnd())
	half := len(payload) / 2
	resp := &Response{Header: payload[:half], Body: payload[half:], Status: int(a.n)}
	c.rec.putPayload(resp)
	c.rec.finish(resp, 0)
	a.cells = append(a.cells, c)
	a.bytes += len(c.rec)
}

// verify checks that a record is as it was written: what is alive shares no byte with it.
func (a *arenaFuzz) verify(c arenaCell) {
	require.True(a.t, c.rec.named("", c.name) && c.rec.state() == flagDone && c.rec.status() == int(c.fill))
	require.Len(a.t, c.rec.payload(), len(c.rec)-c.rec.nameEnd())
	require.Equal(a.t, len(c.rec.payload()), bytes.Count(c.rec.payload(), []byte{c.fill}), "another cell's bytes")
}

func (a *arenaFuzz) release() {
	for i := a.next(); len(a.cells) > 0 && a.flag(); i = a.next() {
		for range min(pick(&a.tape, 1, 2, 39, 300), len(a.cells)) {
			a.releaseAt(i % len(a.cells))
		}
	}
}

func (a *arenaFuzz) releaseAt(i int) {
	c := a.cells[i]
	a.verify(c)
	require.Same(a.t, &c.rec[0], &a.a.at(c.r)[0], "the cell has moved")
	large := a.a.large(c.r)
	a.a.release(c.r)
	a.bytes -= len(c.rec)
	a.cells = slices.Delete(a.cells, i, i+1)
	if large {
		a.gone = append(a.gone, c)
		return
	}
	require.Zero(a.t, c.rec.state(), "a stale ref finds a record")
	require.Zero(a.t, c.rec.keyLen()+c.rec.headerLen()+c.rec.bodyLen(), "a stale ref finds a response")
}
