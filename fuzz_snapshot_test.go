package idem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzRestore restores what may be no snapshot. To get further than the first checksum an input is the bytes of records one
// after the other, and the checksums are put between them. Whatever comes of it, the engine must be sound.
func FuzzRestore(f *testing.F) {
	f.Add(true, false, []byte{})
	f.Add(true, true, savedForFuzz(f))
	f.Add(false, true, savedForFuzz(f))
	f.Fuzz(func(t *testing.T, records, hold bool, input []byte) {
		synctest.Test(t, func(t *testing.T) {
			if records {
				input = withChecksums(input)
			}
			cfg := Config{Shards: 2}
			if hold {
				cfg.OnLeaseExpiry = Hold
			}
			e, again := openForTest(t, cfg), openForTest(t, cfg)
			err := e.Restore(bytes.NewReader(input))
			require.NotErrorIs(t, err, ErrFull)
			if err != nil {
				require.ErrorIs(t, err, ErrSnapshot)
			}
			checkInvariants(t, e)
			var saved bytes.Buffer
			require.NoError(t, e.Snapshot(&saved))
			require.NoError(t, again.Restore(&saved))
			checkInvariants(t, again)
			require.Equal(t, e.Len(), again.Len())
			for rec := range again.All() {
				out, err := e.Begin(t.Context(), Request{Scope: rec.Scope, Key: rec.Key, Fingerprint: rec.Fingerprint})
				require.NoError(t, err)
				require.Equal(t, rec.State, out.State)
				require.Equal(t, string(rec.Response.Body), string(out.Response.Body))
			}
			time.Sleep(100 * time.Hour)
			synctest.Wait()
			checkInvariants(t, e)
		})
	})
}

// Right checksums make no record of what is none.
func TestRestoreOfNoRecord(t *testing.T) {
	rest := []byte("keybody")
	forge := func(change func(r record)) []byte {
		var head [recordHeader]byte
		r := record(head[:])
		r.setToken(1)
		r.setDeadline(1e9)
		r.mark(flagDone, 0)
		r[54], r[60] = 3, 4
		change(r)
		var out bytes.Buffer
		w := newSnapshotWriter(&out)
		w.begin(time.Now())
		w.record(&savedRecord{head, rest})
		require.NoError(t, w.end(1))
		return out.Bytes()
	}
	require.NoError(t, openForTest(t, Config{}).Restore(bytes.NewReader(forge(func(record) {}))))
	for name, change := range map[string]func(r record){
		"no token":                   func(r record) { r.setToken(0) },
		"a token beyond all":         func(r record) { r.setToken(maxSavedToken + 1) },
		"a link to another":          func(r record) { r.setNext(1) },
		"a link back":                func(r record) { r.setPrev(1) },
		"no time left":               func(r record) { r.setDeadline(0) },
		"no key":                     func(r record) { r[54], r[60] = 0, 7 },
		"two states":                 func(r record) { r.mark(flagInProgress|flagUnknown, 0); r[54], r[60] = 7, 0 },
		"a flag that does not exist": func(r record) { r.mark(flagDone|1<<63, 0) },
		"a body and no state":        func(r record) { r.mark(0, 0) },
		"a body while in progress":   func(r record) { r.mark(flagInProgress, 0) },
		"a length beyond its end":    func(r record) { r[63] = 0x7e },
		"a length beyond all":        func(r record) { r[59], r[63] = 0x7f, 0x7f },
	} {
		e := openForTest(t, Config{})
		require.ErrorIs(t, e.Restore(bytes.NewReader(forge(change))), ErrSnapshot, name)
		require.Zero(t, e.Len(), name)
	}
}

// Each record is copied by itself: gathered in one buffer that grows, a page of them took six times their memory, and
// milliseconds under the shard's lock.
func TestSnapshotGathersNoHeap(t *testing.T) {
	e := openForTest(t, Config{Shards: 1})
	body := string(make([]byte, 15_000))
	for i := range 1000 {
		keep(t, e, fmt.Sprint(i), body, time.Hour)
	}
	s := &e.shards[0]
	for cursor, more := uint32(0), true; more; more = cursor != 0 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		page, next, err := s.save(cursor, nil)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		bytes := 0
		for _, r := range page {
			bytes += len(r.rest)
		}
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*bytes+100_000))
		cursor = next
	}
}

// savedForFuzz is a snapshot without checksums.
func savedForFuzz(f *testing.F) (input []byte) {
	e := openForTest(f, Config{})
	keep(f, e, "done", "b", time.Hour)
	keep(f, e, "large", string(make([]byte, maxShared)), time.Hour)
	_, err := e.Begin(f.Context(), Request{Scope: "s", Key: "in progress"})
	require.NoError(f, err)
	for i := range e.shards {
		page, next, err := e.shards[i].save(0, nil)
		require.NoError(f, err)
		require.Zero(f, next)
		for _, r := range page {
			record(r.head[:]).leave(0)
			input = append(append(input, r.head[:]...), r.rest...)
		}
	}
	var last savedRecord
	record(last.head[:]).setToken(1)
	return append(input, last.head[:]...)
}

// withChecksums makes a snapshot of records. A token that is none stays so; others differ, as they do in an engine.
func withChecksums(input []byte) []byte {
	var out bytes.Buffer
	w := newSnapshotWriter(&out)
	w.begin(time.Now())
	for token := uint64(1); len(input) >= recordHeader; token++ {
		r := savedRecord{head: [recordHeader]byte(input)}
		input = input[recordHeader:]
		h := record(r.head[:])
		if h.token() != 0 && h.token() <= maxSavedToken {
			h.setToken(token)
		}
		n := uint64(h.scopeLen()+h.keyLen()) + uint64(binary.LittleEndian.Uint32(h[56:])) + uint64(binary.LittleEndian.Uint32(h[60:]))
		r.rest = input[:min(n, uint64(len(input)))]
		input = input[len(r.rest):]
		if h.state() == 0 && n == 0 {
			w.piece(h)
			continue
		}
		w.record(&r)
	}
	_ = w.out.Flush()
	return out.Bytes()
}
