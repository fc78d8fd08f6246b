package idem

// Stats tells what an engine holds and has done. It is a snapshot: the parts of it were taken one after
// the other while the engine went on.
type Stats struct {
	Records    int // held now, see [Engine.Len]
	InProgress int // of them, claims whose lease runs
	Waiting    int // callers that wait now
	Bytes      int // memory held for records and their index

	// Counted since New. Each answer of Begin is in one of the first five.
	Fresh      uint64 // claims granted, those handed over or taken over among them
	Replayed   uint64
	Duplicates uint64 // answers InProgress
	Mismatched uint64
	Unknown    uint64

	Waited     uint64 // times that a caller began to wait
	HandedOver uint64 // claims that passed to a waiter

	Completed     uint64 // responses recorded
	Truncated     uint64 // of them, those whose body was not kept
	Abandoned     uint64
	Extended      uint64
	Restored      uint64 // records made anew: by Restore, or by a late Complete or Extend
	Lost          uint64 // answers ErrClaimLost to claims of this engine
	LeasesExpired uint64 // claims whose lease ran out
	Expired       uint64 // records whose TTL ran out
	Forgotten     uint64
	Resolved      uint64
	Refused       uint64 // answers ErrFull

	// Shards tells how evenly the records are spread.
	Shards []ShardStats
}

// ShardStats is one shard's part of [Stats].
type ShardStats struct {
	Records int
	Bytes   int
}

// counts are a shard's counters, guarded by its mu.
type counts struct {
	duplicates, mismatched, unknown, waited, handedOver, truncated, abandoned uint64
	extended, restored, lost, leasesExpired, forgotten, resolved, refused     uint64

	fresh, replayed, completed, expired uint64
	inProgress                          int
}

// Stats returns a snapshot. It locks one shard at a time.
func (e *Engine) Stats() Stats {
	st := Stats{
		Waiting:  int(e.waiting.Load()),
		Replayed: e.hits.total(),
		Shards:   make([]ShardStats, len(e.shards)),
	}
	for i := range e.shards {
		n, c := e.shards[i].stats()
		st.Shards[i] = n
		st.Records += n.Records
		st.Bytes += n.Bytes
		st.add(&c)
		st.Replayed += e.shards[i].hotHits.Load()
	}
	return st
}

// Len returns how many records are held now. Of a response whose time ran out the record may be held for up to a
// fifteenth of its TTL longer, which no other method shows; of a lapsed claim, and if Config.MaxRecords is set, for some
// milliseconds.
func (e *Engine) Len() (n int) {
	for i := range e.shards {
		held, _ := e.shards[i].stats()
		n += held.Records
	}
	return n
}

func (s *shard) stats() (ShardStats, counts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return ShardStats{Records: s.index.n, Bytes: s.counted}, s.counts
}

func (st *Stats) add(c *counts) {
	st.InProgress += c.inProgress
	st.Fresh += c.fresh
	st.Replayed += c.replayed
	st.Duplicates += c.duplicates
	st.Mismatched += c.mismatched
	st.Unknown += c.unknown
	st.Waited += c.waited
	st.HandedOver += c.handedOver
	st.Completed += c.completed
	st.Truncated += c.truncated
	st.Abandoned += c.abandoned
	st.Extended += c.extended
	st.Restored += c.restored
	st.Lost += c.lost
	st.LeasesExpired += c.leasesExpired
	st.Expired += c.expired
	st.Forgotten += c.forgotten
	st.Resolved += c.resolved
	st.Refused += c.refused
}
