package idem

import "math/bits"

// A ref names a cell of an arena: the slab's number above the cell's offset in units of cellAlign.
// Zero names nothing. The top bit stays free for the timing wheel.
type ref uint32

const (
	cellAlign  = 16                      // bytes; cells begin at multiples of it
	offsetBits = 13                      // so that a slab spans at most
	maxSlab    = cellAlign << offsetBits // 128 KiB: clearing a recycled one stays near 10 µs
	minSlab    = 4 << 10                 // bytes; what a class starts with and may keep while empty
	maxShared  = 16 << 10                // bytes; a larger cell is a slab of its own
	slabGrowth = 16                      // a class grows by 1/16, which bounds what stands unused
	maxSlabs   = 1 << (31 - offsetBits)  // 32 GiB of slabs in one arena
	stepBits   = 4                       // 16 size classes per doubling: at most 6 % lost to rounding
	classes    = 8 << stepBits           // enough for maxShared
)

// An arena hands out cells of memory that hold no pointers. Cells of one size class share slabs;
// a slab whose cells are all free is given back to the runtime, so that memory falls after a spike.
// It is not safe for concurrent use.
type arena struct {
	idle    uint32   // the class that was last to have no cell in use any more
	lowest  int      // no free number lies below it
	memory  []memory // of the slabs, by number; number 0 is never used
	slabs   []slab   // by the same
	bytes   int      // of all slabs
	byClass [classes]class
}

// memory is what finding a cell takes. It does not change while the slab lives: to find one must not wait for what another
// processor wrote about its neighbours.
type memory struct {
	buf  []byte
	cell uint32 // bytes per cell
}

// A slab is what handing out and taking back takes. It shares its cache line with one other.
type slab struct {
	size       uint32 // bytes
	cell       uint32 // bytes per cell
	class      uint32
	used       uint32 // cells handed out
	bump       uint32 // offset of the first cell that was never handed out since the slab was empty
	free       uint32 // head of the list of returned cells: offset/cellAlign + 1
	prev, next uint32 // neighbours among the class's slabs with room
}

type class struct {
	room  uint32 // head of the list of slabs that are neither full nor empty
	spare uint32 // one empty slab that is kept, against giving back and taking again in turn
	used  uint32 // cells handed out
	bytes int    // of its slabs
}

// noClass marks a slab of one large cell.
const noClass = classes

// classOf returns the size class for n bytes and its cell size. Sizes are multiples of cellAlign up
// to 512 bytes, and from there on 16 steps per doubling.
func classOf(n int) (class, cell int) {
	units := (n + cellAlign - 1) / cellAlign
	shift := max(bits.Len(uint(units-1))-stepBits-1, 0)
	steps := (units + 1<<shift - 1) >> shift
	return shift<<stepBits + steps - 1, steps << shift * cellAlign
}

// cellSize is how many bytes alloc would hand out for n.
func cellSize(n int) int {
	if n > maxShared {
		return n
	}
	_, cell := classOf(n)
	return cell
}

// at returns the cell that r names.
func (a *arena) at(r ref) record {
	m := &a.memory[r>>offsetBits]
	off := uint32(r&(1<<offsetBits-1)) * cellAlign
	return record(m.buf[off : off+m.cell : off+m.cell])
}

// large reports whether r is a slab of its own. Such a slab is never handed out again: who holds it
// may read the payload of a finished record without the shard's lock.
func (a *arena) large(r ref) bool { return a.memory[r>>offsetBits].cell > maxShared }

// alloc hands out a cell of at least n bytes. What it holds is arbitrary.
func (a *arena) alloc(n int) ref {
	if n > maxShared {
		return a.adopt(make([]byte, n))
	}
	class, cell := classOf(n)
	c := &a.byClass[class]
	if c.room == 0 {
		a.addRoom(c, class, cell)
	}
	id := c.room
	s := &a.slabs[id]
	off := s.bump
	if s.free != 0 {
		off = (s.free - 1) * cellAlign
		s.free = record(a.memory[id].buf[off:]).u32(0)
	} else {
		s.bump += s.cell
	}
	s.used++
	c.used++
	if s.full() {
		a.unlink(c, id)
	}
	return ref(id<<offsetBits | off/cellAlign)
}

// crowded reports whether so few numbers are left that they are for slabs of many cells.
func (a *arena) crowded() bool { return len(a.slabs) > maxSlabs-maxSlabs/16 }

// adopt makes buf a slab of one large cell.
func (a *arena) adopt(buf []byte) ref {
	id := a.add(buf, slab{cell: uint32(len(buf)), class: noClass, used: 1})
	return ref(id << offsetBits)
}

// growth returns how many bytes of new slabs an alloc of n would take; zero when a cell is free.
func (a *arena) growth(n int) int {
	if n > maxShared {
		return n
	}
	class, cell := classOf(n)
	c := &a.byClass[class]
	if c.room != 0 || c.spare != 0 {
		return 0
	}
	return c.slabSize(cell)
}

// release takes a cell back.
func (a *arena) release(r ref) {
	id := uint32(r >> offsetBits)
	s := &a.slabs[id]
	if s.class == noClass {
		a.drop(id)
		return
	}
	c := &a.byClass[s.class]
	wasFull := s.full()
	cell := a.at(r)
	clear(cell[:recordHeader]) // so that a stale ref finds no record
	cell.putU32(0, s.free)
	s.free = uint32(r&(1<<offsetBits-1)) + 1
	s.used--
	c.used--
	switch {
	case s.used == 0:
		if !wasFull {
			a.unlink(c, id)
		}
		a.retire(s.class, id)
	case wasFull:
		a.link(c, id)
	}
}

// retire decides what becomes of an empty slab. A class that is in use keeps one, the smallest, as its spare.
// Of the classes that are not, only the last one does, and only a slab of minSlab: what stands empty must not
// add up over sizes.
func (a *arena) retire(class, id uint32) {
	s, c := &a.slabs[id], &a.byClass[class]
	s.bump, s.free = 0, 0
	if c.spare != 0 && a.slabs[c.spare].size > s.size {
		id, c.spare = c.spare, id
	}
	if c.spare == 0 {
		c.spare = id
	} else {
		a.dropOf(c, id)
	}
	if c.used > 0 {
		return
	}
	if a.idle != class {
		a.dropSpare(&a.byClass[a.idle])
		a.idle = class
	}
	switch s, buf := a.slabs[c.spare], a.memory[c.spare].buf; {
	case s.size > minSlab:
		a.dropSpare(c)
	case int(c.spare) > a.lowest: // under a low number it lets the table shrink
		a.dropOf(c, c.spare)
		c.spare = a.add(buf, s)
		c.bytes += len(buf)
	}
}

// dropSpare gives the spare of a class back that has no cell in use.
func (a *arena) dropSpare(c *class) {
	if c.used == 0 && c.spare != 0 {
		a.dropOf(c, c.spare)
		c.spare = 0
	}
}

// addRoom gives the class a slab with free cells: its spare, or a new one.
func (a *arena) addRoom(c *class, class, cell int) {
	id := c.spare
	c.spare = 0
	if id == 0 {
		n := c.slabSize(cell)
		id = a.add(make([]byte, n), slab{cell: uint32(cell), class: uint32(class)})
		c.bytes += n
	}
	a.link(c, id)
}

// slabSize is the size of the class's next slab: a whole number of cells.
func (c *class) slabSize(cell int) int {
	n := min(max(c.bytes/slabGrowth, minSlab), maxSlab)
	return max(n/cell, 1) * cell
}

func (s *slab) full() bool { return s.free == 0 && s.bump+s.cell > s.size }

func (a *arena) link(c *class, id uint32) {
	s := &a.slabs[id]
	s.prev, s.next = 0, c.room
	if c.room != 0 {
		a.slabs[c.room].prev = id
	}
	c.room = id
}

func (a *arena) unlink(c *class, id uint32) {
	s := &a.slabs[id]
	if s.prev != 0 {
		a.slabs[s.prev].next = s.next
	} else {
		c.room = s.next
	}
	if s.next != 0 {
		a.slabs[s.next].prev = s.prev
	}
	s.prev, s.next = 0, 0
}

// add numbers a new slab whose memory is buf. Low numbers are used first, so that the table can shrink.
func (a *arena) add(buf []byte, s slab) (id uint32) {
	s.size = uint32(len(buf))
	a.bytes += len(buf)
	id = a.number()
	a.memory[id], a.slabs[id] = memory{buf, s.cell}, s
	return id
}

// number returns the lowest number that no slab has.
func (a *arena) number() uint32 {
	for id := max(a.lowest, 1); id < len(a.slabs); id++ {
		if a.memory[id].buf == nil {
			a.lowest = id + 1
			return uint32(id)
		}
	}
	if len(a.slabs) == 0 {
		a.memory, a.slabs = make([]memory, 1), make([]slab, 1)
	}
	if len(a.slabs) == maxSlabs {
		panic("idem: shard has no number left for a slab") // admitLocked refuses records long before, and complete large ones
	}
	a.memory, a.slabs = append(a.memory, memory{}), append(a.slabs, slab{})
	a.lowest = len(a.slabs)
	return uint32(len(a.slabs) - 1)
}

func (a *arena) dropOf(c *class, id uint32) {
	c.bytes -= int(a.slabs[id].size)
	a.drop(id)
}

// drop gives a slab back to the runtime.
func (a *arena) drop(id uint32) {
	a.bytes -= int(a.slabs[id].size)
	a.memory[id], a.slabs[id] = memory{}, slab{}
	a.lowest = min(a.lowest, int(id))
	n := len(a.slabs)
	for n > 1 && a.memory[n-1].buf == nil {
		n--
	}
	a.memory, a.slabs = shorten(a.memory, n), shorten(a.slabs, n)
	a.lowest = min(a.lowest, n)
}

// shorten returns the first n of s, in less room when most of it stands empty.
func shorten[T any](s []T, n int) []T {
	if cap(s) > 8 && n < cap(s)/4 {
		return append(make([]T, 0, 2*n), s[:n]...)
	}
	return s[:n]
}
