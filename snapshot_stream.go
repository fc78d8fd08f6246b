package idem

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A snapshot is a row of pieces. Each is followed by the xxHash of all bytes up to there, so that what was left out
// or moved is found as well as what was changed, and a length is known to be right before it is used:
//
//	snapshotMagic, when the snapshot was taken (int64, ns since 1970)
//	for each record: its header, then what follows that
//	a header that has no state, with the highest token granted
//
// Records are laid out as in memory, see record, but for times (leave) and links, which are zero.
const snapshotMagic = "idem-sn1"

// A savedRecord is a copy of a record for a snapshot.
type savedRecord struct {
	head [recordHeader]byte
	rest []byte // scope, key, and response
}

// leave makes the times of a record, which count from the engine's start, what they are at taken: the deadline what is
// left until then, and since what has passed.
func (r record) leave(taken int64) {
	r.setNext(0)
	r.setPrev(0)
	r.setDeadline(r.deadline() - taken)
	r.mark(r.flags(), taken-r.since())
}

// arrive is what undoes leave, for another engine, on whose clock the snapshot was taken then.
func (r record) arrive(then int64) {
	r.setDeadline(after(then, time.Duration(r.deadline())))
	r.mark(r.flags(), then-r.since())
}

// maxSavedToken is far above any token that can have been granted, and can be counted on from.
const maxSavedToken = 1 << 62

// check tells what is wrong with the header of a record that has left, if anything.
func (r record) check() error {
	payload := uint64(r.u32(56)) + uint64(r.u32(60))
	switch state := r.state(); {
	case payload > math.MaxInt32 || payload > math.MaxInt-recordHeader-2*math.MaxUint16:
		return fmt.Errorf("a response of %d bytes", payload)
	case r.next()|r.prev() != 0:
		return fmt.Errorf("links %d and %d", r.next(), r.prev())
	case r.token() == 0 || r.token() > maxSavedToken:
		return fmt.Errorf("token %d", r.token())
	case r.flags()&^(stateFlags|flagFailed|flagTruncated) != 0 || bits.OnesCount64(state) > 1:
		return fmt.Errorf("flags %#x", r.flags()>>sinceBits)
	case state != 0 && (r.keyLen() == 0 || r.deadline() <= 0):
		return fmt.Errorf("key of %d bytes, %d ns left", r.keyLen(), r.deadline())
	case state != flagDone && payload > 0:
		return errors.New("a response of what is not done")
	}
	return nil
}

// A snapshotWriter keeps its first error, after which it writes nothing.
type snapshotWriter struct {
	out *bufio.Writer
	sum *xxhash.Digest
	err error
}

func newSnapshotWriter(w io.Writer) *snapshotWriter {
	return &snapshotWriter{out: bufio.NewWriterSize(w, 64<<10), sum: xxhash.New()}
}

func (w *snapshotWriter) begin(taken time.Time) {
	w.piece(binary.LittleEndian.AppendUint64([]byte(snapshotMagic), uint64(taken.UnixNano())))
}

func (w *snapshotWriter) record(r *savedRecord) {
	w.piece(r.head[:])
	w.piece(r.rest)
}

func (w *snapshotWriter) end(token uint64) error {
	var last savedRecord
	record(last.head[:]).setToken(token)
	w.piece(last.head[:])
	if w.err == nil {
		w.err = w.out.Flush()
	}
	return w.err
}

func (w *snapshotWriter) piece(b []byte) {
	if w.err != nil {
		return
	}
	_, _ = w.sum.Write(b) // its error is always nil
	var sum [8]byte
	binary.LittleEndian.PutUint64(sum[:], w.sum.Sum64())
	if _, w.err = w.out.Write(b); w.err == nil {
		_, w.err = w.out.Write(sum[:])
	}
}

type snapshotReader struct {
	in      *bufio.Reader
	sum     *xxhash.Digest
	buf     []byte
	records int // read so far, the one that is being read among them
}

func newSnapshotReader(r io.Reader) *snapshotReader {
	return &snapshotReader{in: bufio.NewReaderSize(r, 64<<10), sum: xxhash.New()}
}

func (r *snapshotReader) begin() (taken time.Time, err error) {
	if magic, _ := r.in.Peek(len(snapshotMagic)); len(magic) == len(snapshotMagic) && string(magic) != snapshotMagic {
		return time.Time{}, fmt.Errorf("%w: it begins with %q, want %q", ErrSnapshot, magic, snapshotMagic)
	}
	b, err := r.piece(nil, len(snapshotMagic)+8)
	if err != nil {
		return time.Time{}, err
	}
	return time.Unix(0, int64(binary.LittleEndian.Uint64(b[len(snapshotMagic):]))), nil
}

// record returns the next record, or one without a state at the end. It is valid until the next call.
func (r *snapshotReader) record() (record, error) {
	r.records++
	b, err := r.piece(r.buf[:0], recordHeader)
	if err != nil {
		return nil, err
	}
	rec := record(b)
	if err = rec.check(); err != nil {
		return nil, r.damaged(err)
	}
	if rec.state() != 0 {
		b, err = r.piece(b, rec.nameEnd()+rec.headerLen()+rec.bodyLen()-recordHeader)
	}
	r.buf = b
	return record(b), err
}

// readStep bounds the memory that is taken before there are bytes to fill it.
const readStep = 1 << 20

// piece appends a piece of n bytes to b.
func (r *snapshotReader) piece(b []byte, n int) ([]byte, error) {
	start := len(b)
	for left := n; left > 0; {
		step := min(left, readStep)
		b = slices.Grow(b, step)[:len(b)+step]
		if err := r.fill(b[len(b)-step:]); err != nil {
			return nil, err
		}
		left -= step
	}
	_, _ = r.sum.Write(b[start:])
	var sum [8]byte
	if err := r.fill(sum[:]); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(sum[:]) != r.sum.Sum64() {
		return nil, r.damaged(errors.New("checksums differ"))
	}
	return b, nil
}

func (r *snapshotReader) fill(b []byte) error {
	_, err := io.ReadFull(r.in, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.damaged(errors.New("it is cut off"))
	}
	return err
}

func (r *snapshotReader) damaged(err error) error {
	if r.records == 0 {
		return fmt.Errorf("%w: its beginning: %w", ErrSnapshot, err)
	}
	return fmt.Errorf("%w: record %d: %w", ErrSnapshot, r.records, err)
}
