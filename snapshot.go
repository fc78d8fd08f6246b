package idem

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSnapshot comes from [Engine.Restore] when what it reads is no snapshot or a damaged one.
var ErrSnapshot = errors.New("idem: damaged snapshot")

// Snapshot writes the engine's records to w, from where the engine of a later process can [Engine.Restore] them. Without
// it a restart forgets them, and who retries afterwards runs the operation again. Stop taking requests, wait for those that
// run, write the snapshot, then close the engine; see also [Engine.SnapshotFile].
//
// The engine goes on meanwhile: a record that is there throughout is in the snapshot, as it was at some time. The lock of
// a shard is held for 16 records at a time. The error is w's or [ErrClosed]; then what was written is of no use.
func (e *Engine) Snapshot(w io.Writer) error {
	out := newSnapshotWriter(w)
	taken := e.clock.now()
	out.begin(time.Now())
	var page []savedRecord
	for i := range e.shards {
		for cursor, more := uint32(0), true; more; more = cursor != 0 {
			var err error
			if page, cursor, err = e.shards[i].save(cursor, page[:0]); err != nil {
				return err
			}
			for j := range page {
				record(page[j].head[:]).leave(taken)
				out.record(&page[j])
			}
			if out.err != nil {
				return out.err
			}
		}
	}
	return out.end(e.tokens.Load())
}

// Restore takes in the records of a snapshot. It is best called before the first Begin: a key that the engine knows
// already stays as it is. It may be called again, with the same snapshot or another.
//
// Leases, and the time that responses are replayed, go on to end when they would have. What passed since the snapshot was
// taken the machine's clock tells; if it was set back beyond that, nothing did. A claim can be completed by who still has
// it. Tokens go on above the highest that was granted. A key longer than [Config.MaxKeyBytes] is left out, since nobody can
// ask for it. The limits [Config.MaxRecords] and [Config.MaxBytes] are for new keys: what was done is not to be done again.
//
// Errors are [ErrSnapshot], [ErrClosed], r's, and [ErrFull] for more than 16 GiB in a shard. Then some records are missing;
// those that came before are as they were, and stay.
func (e *Engine) Restore(r io.Reader) error {
	in := newSnapshotReader(r)
	taken, err := in.begin()
	if err != nil {
		return err
	}
	then := e.clock.now() - max(int64(time.Since(taken)), 0)
	for {
		rec, err := in.record()
		if err != nil {
			return err
		}
		e.raiseTokens(rec.token())
		if rec.state() == 0 {
			return nil // the end
		}
		if err := e.restore(rec, then); err != nil {
			return fmt.Errorf("idem: record %d of the snapshot: %w", in.records, err)
		}
	}
}

// restore takes one record in. Then is when, by the engine's clock, the snapshot was taken.
func (e *Engine) restore(rec record, then int64) error {
	scope, key := string(rec.scope()), string(rec.key())
	if e.checkKey(scope, key) != nil {
		return nil //nolint:nilerr // nobody can ask for it
	}
	rec.arrive(then)
	return e.shardOf(scope, key).restore(rec, scope, key, e.hash(scope, key))
}

// raiseTokens sees to it that tokens are granted from above t.
func (e *Engine) raiseTokens(t uint64) {
	for old := e.tokens.Load(); old < t && !e.tokens.CompareAndSwap(old, t); old = e.tokens.Load() {
	}
}
