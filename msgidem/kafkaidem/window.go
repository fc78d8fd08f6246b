package kafkaidem

import "github.com/twmb/franz-go/pkg/kgo"

// A window is what is in hand of one partition, in the order in which it came: offsets have gaps where a log was
// compacted, and start anew after a reset. It finds the contiguous prefix of what is settled, beyond which must not
// be committed. Whoever has one guards it.
type window struct {
	entries []entry
	head    int    // of entries; those before it were settled
	first   uint64 // the number of entries[head]: numbers count from 0, in the order of add

	// next is where the group goes on once what is settled is committed. Its Offset is -1 as long as nothing is.
	next kgo.EpochOffset
}

type entry struct {
	offset  int64
	epoch   int32
	settled bool
}

func newWindow() window { return window{next: kgo.EpochOffset{Epoch: -1, Offset: -1}} }

// add takes a record in hand and returns its number.
func (w *window) add(r *kgo.Record) uint64 {
	if w.head > len(w.entries)/2 { // at most every second move: amortised, it costs nothing
		w.entries = w.entries[:copy(w.entries, w.entries[w.head:])]
		w.head = 0
	}
	w.entries = append(w.entries, entry{offset: r.Offset, epoch: r.LeaderEpoch})
	return w.first + uint64(len(w.entries)-w.head) - 1
}

// settle notes that the record of that number is settled, and moves next over those that are in a row. A number that
// was settled before is none any more.
func (w *window) settle(n uint64) {
	if n < w.first {
		return
	}
	w.entries[w.head+int(n-w.first)].settled = true //nolint:gosec // less than len(entries)
	for w.head < len(w.entries) && w.entries[w.head].settled {
		e := &w.entries[w.head]
		w.next = kgo.EpochOffset{Epoch: e.epoch, Offset: e.offset + 1}
		w.head++
		w.first++
	}
}

// len returns how many records are in hand, settled ones behind one that is not among them.
func (w *window) len() int { return len(w.entries) - w.head }
