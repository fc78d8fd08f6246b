package idem

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrSnapshot comes from [Engine.Restore] when what it reads is no snapshot or a damaged one. The records before the one that
// the error names were restored, the others are lost: their operations would run again. So put the file aside, before
// another one takes its place, and better do not start until somebody has looked.
var ErrSnapshot = errors.New("idem: damaged snapshot")

// errTier comes from the engine of a [TieredStore], whose records are another store's and have a form of their own.
var errTier = errors.New("idem: the engine of a TieredStore has no snapshots: the remote store knows it all")

// Snapshot writes the engine's records to w, from where the engine of a later process can [Engine.Restore] them. Without
// it a restart forgets them, and who retries afterwards runs the operation again. Stop taking requests, wait for those that
// run, write the snapshot, then close the engine; see also [Engine.SnapshotFile]. What runs still is in it as in progress,
// and the next process does not learn how it ended: it goes by its [LeasePolicy].
//
// The engine goes on meanwhile: a record that is there throughout is in the snapshot, as it was at some time. The lock of
// a shard is held for 16 records at a time. The error is w's or [ErrClosed]; then what was written is of no use.
func (e *Engine) Snapshot(w io.Writer) error {
	if e.tier.Load() {
		return errTier
	}
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
// already stays as it is, unless it is the snapshot that tells how the same claim ended. It may be called again; of several
// snapshots the newest comes first.
//
// Leases, and the time that responses are replayed, go on to end when they would have. What passed since the snapshot was
// taken the machine's clock tells; if it was set back beyond that, nothing did. A claim that was marshalled can still be
// completed. Tokens go on above the highest that was granted. A key longer than [Config.MaxKeyBytes] is left out, since nobody
// can ask for it. The limits [Config.MaxRecords] and [Config.MaxBytes] are for new keys: what was done is not to be done
// again. [Stats] tells how many records were restored, and [Config.Logger] how many were over.
//
// Errors are [ErrSnapshot], [ErrClosed], r's, and [ErrFull] for more than 130 000 claims in progress, or as many responses
// over 16 KiB, in a shard. Then some records are missing; those that came before are as they were, and stay. Restore may
// read beyond the end of the snapshot.
func (e *Engine) Restore(r io.Reader) error { return e.restoreAll(newSnapshotReader(r)) }

func (e *Engine) restoreAll(in *snapshotReader) error {
	switch {
	case e.tier.Load():
		return errTier
	case e.shards[0].isClosed():
		return ErrClosed
	}
	taken, err := in.begin()
	if err != nil {
		return err
	}
	away := max(time.Since(taken), 0)
	then, over := e.clock.now()-int64(away), 0
	for {
		rec, err := in.record()
		if err != nil {
			return err
		}
		e.raiseTokens(rec.token())
		if rec.state() == 0 {
			e.tellRestored(in.records-1, over, away)
			return nil // the end
		}
		live, err := e.restore(rec, then)
		if err != nil {
			return fmt.Errorf("idem: record %d of the snapshot: %w", in.records, err)
		}
		if !live {
			over++
		}
	}
}

// restore takes one record in, and reports whether its time is not over. Then is when, by the engine's clock, the
// snapshot was taken.
func (e *Engine) restore(rec record, then int64) (live bool, err error) {
	scope, key := string(rec.scope()), string(rec.key())
	if e.checkKey(scope, key) != nil {
		return true, nil //nolint:nilerr // nobody can ask for it
	}
	rec.arrive(then)
	return e.shardOf(scope, key).restore(rec, scope, key, e.hash(scope, key))
}

// tellRestored tells the logger what a restart cost. Were the machine's clock wrong, everything might be over.
func (e *Engine) tellRestored(records, over int, away time.Duration) {
	if e.lapsed.Load() > 0 {
		e.nudge() // of these the sweeper tells
	}
	if e.cfg.Logger != nil {
		e.cfg.Logger.Info("idem: snapshot restored", "records", records, "over", over, "age", away)
	}
}

// raiseTokens sees to it that tokens are granted from above t.
func (e *Engine) raiseTokens(t uint64) {
	for old := e.tokens.Load(); old < t && !e.tokens.CompareAndSwap(old, t); old = e.tokens.Load() {
	}
}
