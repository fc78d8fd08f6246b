package idem

// An index finds the records with a given hash. It is an extendible hash table: a directory of small
// open-addressed tables, chosen by the upper bits of the hash. A table that is full is split in two and
// a table that empties joins its neighbour, so that no step moves more than one table's slots, however
// many records there are. Slots hold the hash beside the ref, so that neither growing nor probing
// touches records that do not match. It holds refs, not pointers, and is not safe for concurrent use.
type index struct {
	slots  [][]uint64 // of the tables, by the upper depth bits of the hash; all that a search needs
	tables []*table   // by the same; 1<<depth of them
	depth  uint8
	n      int // records
	bytes  int // of all tables
}

// A table is probed linearly from the slot that the lowest hash bits name. Removing closes the gap instead of
// leaving a tombstone.
type table struct {
	slots []uint64 // hash<<32 | ref; zero is empty
	n     int
	depth uint8 // how many upper bits of the hash its records share
}

const (
	minTable = 64   // slots
	maxTable = 1024 // slots; splitting that many takes some 10 µs
	maxDepth = 20   // bits
)

// The share of slots in use. Above 4/5 probes for absent keys get long; below 1/8 memory is wasted;
// two tables join when the result would be at most 2/5 full, halfway between.
func (t *table) full() bool   { return t.n*5 >= len(t.slots)*4 }
func (t *table) sparse() bool { return t.n*8 < len(t.slots) }

func (x *index) table(h uint32) *table {
	if x.tables == nil {
		return nil
	}
	return x.tables[h>>(32-x.depth)]
}

// probe starts a search for h.
func (x *index) probe(h uint32) probe {
	if x.slots == nil {
		return probe{}
	}
	return probe{slots: x.slots[h>>(32-x.depth)], at: int(h), hash: h}
}

// A probe walks over the refs that were stored under a hash.
type probe struct {
	slots []uint64
	at    int
	hash  uint32
}

// next returns the next ref, or zero when there is none.
func (p *probe) next() ref {
	if len(p.slots) == 0 {
		return 0
	}
	for {
		slot := p.slots[p.at&(len(p.slots)-1)]
		p.at++
		if slot == 0 {
			return 0
		}
		if uint32(slot>>32) == p.hash {
			return ref(slot)
		}
	}
}

// all appends the refs under h to buf.
func (x *index) all(h uint32, buf []ref) []ref {
	p := x.probe(h)
	for r := p.next(); r != 0; r = p.next() {
		buf = append(buf, r)
	}
	return buf
}

// insert stores r under h. The same pair must not be there already.
func (x *index) insert(h uint32, r ref) {
	if x.tables == nil {
		x.makeDir(1)
		x.point(0, 1, x.newTable(minTable, 0))
	}
	t := x.table(h)
	for t.full() {
		x.grow(h, t)
		t = x.table(h)
	}
	t.put(uint64(h)<<32 | uint64(r))
	t.n++
	x.n++
}

// replace makes the pair (h, old) be (h, r).
func (x *index) replace(h uint32, old, r ref) {
	t := x.table(h)
	t.slots[t.find(h, old)] = uint64(h)<<32 | uint64(r)
}

// remove takes the pair (h, r) out.
func (x *index) remove(h uint32, r ref) {
	t := x.table(h)
	t.closeGap(t.find(h, r))
	t.n--
	x.n--
	if t.sparse() {
		x.shrink(h, t)
	}
}

// page appends to buf the hashes at or above cursor that are in cursor's table, and returns the first hash
// behind that table; zero after the last one.
func (x *index) page(cursor uint32, buf []uint32) (hashes []uint32, next uint32) {
	t := x.table(cursor)
	if t == nil {
		return buf, 0
	}
	for _, slot := range t.slots {
		if h := uint32(slot >> 32); slot != 0 && h >= cursor {
			buf = append(buf, h)
		}
	}
	prefix := uint64(cursor)>>(32-t.depth) + 1
	return buf, uint32(prefix << (32 - t.depth))
}

// home is the slot that the lowest bits of h name. Tables split by the highest ones.
func (t *table) home(h uint32) int { return int(h) & (len(t.slots) - 1) }

func (t *table) put(slot uint64) {
	mask := len(t.slots) - 1
	i := t.home(uint32(slot >> 32))
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = slot
}

// find returns the position of a pair that is there.
func (t *table) find(h uint32, r ref) int {
	mask := len(t.slots) - 1
	want := uint64(h)<<32 | uint64(r)
	i := t.home(h)
	for t.slots[i] != want {
		if t.slots[i] == 0 {
			panic("idem: index lost a record")
		}
		i = (i + 1) & mask
	}
	return i
}

// closeGap empties slot gap and moves later slots of its run up, unless that would put one before its
// home.
func (t *table) closeGap(gap int) {
	mask := len(t.slots) - 1
	for i := (gap + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		home := t.home(uint32(t.slots[i] >> 32))
		if (i-home)&mask >= (i-gap)&mask {
			t.slots[gap] = t.slots[i]
			gap = i
		}
	}
	t.slots[gap] = 0
}

// takeAll empties the table and appends what it held to buf.
func (t *table) takeAll(buf []uint64) []uint64 {
	for _, slot := range t.slots {
		if slot != 0 {
			buf = append(buf, slot)
		}
	}
	clear(t.slots)
	t.n = 0
	return buf
}

func (x *index) newTable(slots int, depth uint8) *table {
	x.bytes += slots * 8
	return &table{slots: make([]uint64, slots), depth: depth}
}

// point makes count directory entries from first on lead to t.
func (x *index) point(first, count int, t *table) {
	for i := range count {
		x.tables[first+i], x.slots[first+i] = t, t.slots
	}
}

// resize gives t, the table of h, another number of slots.
func (x *index) resize(h uint32, t *table, slots int) {
	old := t.slots
	x.bytes += (slots - len(old)) * 8
	t.slots = make([]uint64, slots)
	for _, slot := range old {
		if slot != 0 {
			t.put(slot)
		}
	}
	first, count := x.span(h, t.depth)
	x.point(first, count, t)
}

// grow makes room in the table of h: it doubles a small one and splits a large one. A table whose
// hashes nearly all agree in the next bit is doubled as well, since splitting would not help.
func (x *index) grow(h uint32, t *table) {
	if len(t.slots) < maxTable || t.depth == maxDepth || t.lopsided() {
		x.resize(h, t, 2*len(t.slots))
		return
	}
	if t.depth == x.depth {
		x.doubleDir()
	}
	x.split(h, t)
}

// split gives the upper half of t's hashes a table of their own. Like join it goes on with the slots that are
// there: fresh memory costs tens of microseconds where it is first touched, and this happens under a lock.
func (x *index) split(h uint32, t *table) {
	first, count := x.span(h, t.depth)
	var old [maxTable]uint64
	used := t.takeAll(old[:0])
	t.depth++
	high := x.newTable(len(t.slots), t.depth)
	for _, slot := range used {
		half := t
		if slot<<(t.depth-1)>>63 != 0 {
			half = high
		}
		half.put(slot)
		half.n++
	}
	x.point(first, count/2, t)
	x.point(first+count/2, count/2, high)
}

// lopsided reports whether a split would leave one half with under a sixteenth of the records.
func (t *table) lopsided() bool {
	high := 0
	for _, slot := range t.slots {
		high += int(slot << t.depth >> 63)
	}
	return min(high, t.n-high) < t.n/16
}

// span returns the directory entries that share the first depth bits of h.
func (x *index) span(h uint32, depth uint8) (first, count int) {
	count = 1 << (x.depth - depth)
	return int(h>>(32-x.depth)) &^ (count - 1), count
}

func (x *index) makeDir(n int) { x.tables, x.slots = make([]*table, n), make([][]uint64, n) }

func (x *index) doubleDir() {
	old := x.tables
	x.makeDir(2 * len(old))
	for i, t := range old {
		x.point(2*i, 2, t)
	}
	x.depth++
}

// shrink joins the table of h with its neighbour, or halves it when it stands alone.
func (x *index) shrink(h uint32, t *table) {
	if t.depth > 0 && len(t.slots) <= maxTable {
		x.join(h, t)
		return
	}
	if len(t.slots) > minTable {
		x.resize(h, t, len(t.slots)/2)
	}
}

// join puts t and the table that it was once split from back together, when both fit well into one.
func (x *index) join(h uint32, t *table) {
	first, count := x.span(h, t.depth)
	other := x.tables[first^count]
	if other.depth != t.depth || len(other.slots) > maxTable || (t.n+other.n)*5 > maxTable*2 {
		return
	}
	x.bytes -= len(other.slots) * 8
	var old [maxTable]uint64
	used := other.takeAll(t.takeAll(old[:0]))
	t.depth--
	for _, slot := range used {
		t.put(slot)
	}
	t.n = len(used)
	x.point(first&^count, 2*count, t)
	x.halveDir()
	if t.sparse() {
		x.shrink(h, t)
	}
}

// halveDir drops directory bits that no table uses any more.
func (x *index) halveDir() {
	for x.depth > 0 {
		old := x.tables
		for i := 0; i < len(old); i += 2 {
			if old[i] != old[i+1] {
				return
			}
		}
		x.makeDir(len(old) / 2)
		for i := range x.tables {
			x.point(i, 1, old[2*i])
		}
		x.depth--
	}
}
