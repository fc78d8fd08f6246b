package idem

import (
	"encoding/binary"
	"time"
)

// A record is the cell that holds one key: a header of 64 bytes, the scope, the key, and once the
// operation is done the response's header and body. It lies in one piece so that an operation pays
// one dependent cache miss for it, and holds no pointer so that the garbage collector passes it by.
//
//	 0 next, prev   uint32 each   links of the timing wheel
//	 8 token        uint64
//	16 deadline     int64         end of the lease or of the TTL, ns since the engine's start
//	24 fingerprint  16 bytes
//	40 since, flags uint64        56 bits: µs since the engine's start, or before it; 8 bits: see below
//	48 status       int32
//	52 scope, key   uint16 each   lengths
//	56 header, body uint32 each   lengths
type record []byte

const recordHeader = 64

// The upper 8 bits of the word at 40. A cell without one of the three states is free.
const (
	flagInProgress = 1 << (sinceBits + iota)
	flagDone
	flagUnknown
	flagFailed
	flagTruncated

	stateFlags = flagInProgress | flagDone | flagUnknown
	sinceBits  = 56 // enough for all µs that an int64 of ns can tell
	flagBits   = 64 - sinceBits
	sinceMask  = 1<<sinceBits - 1
)

func (r record) u32(at int) uint32       { return binary.LittleEndian.Uint32(r[at:]) }
func (r record) putU32(at int, v uint32) { binary.LittleEndian.PutUint32(r[at:], v) }
func (r record) u64(at int) uint64       { return binary.LittleEndian.Uint64(r[at:]) }
func (r record) putU64(at int, v uint64) { binary.LittleEndian.PutUint64(r[at:], v) }

func (r record) next() ref           { return ref(r.u32(0)) }
func (r record) setNext(v ref)       { r.putU32(0, uint32(v)) }
func (r record) prev() ref           { return ref(r.u32(4)) }
func (r record) setPrev(v ref)       { r.putU32(4, uint32(v)) }
func (r record) token() uint64       { return r.u64(8) }
func (r record) deadline() int64     { return int64(r.u64(16)) }
func (r record) state() uint64       { return r.u64(40) & stateFlags }
func (r record) flags() uint64       { return r.u64(40) &^ sinceMask }
func (r record) status() int         { return int(int32(r.u32(48))) }
func (r record) scopeLen() int       { return int(binary.LittleEndian.Uint16(r[52:])) }
func (r record) keyLen() int         { return int(binary.LittleEndian.Uint16(r[54:])) }
func (r record) headerLen() int      { return int(r.u32(56)) }
func (r record) bodyLen() int        { return int(r.u32(60)) }
func (r record) nameEnd() int        { return recordHeader + r.scopeLen() + r.keyLen() }
func (r record) scope() []byte       { return r[recordHeader : recordHeader+r.scopeLen()] }
func (r record) key() []byte         { return r[recordHeader+r.scopeLen() : r.nameEnd()] }
func (r record) setDeadline(t int64) { r.putU64(16, uint64(t)) }

func (r record) since() int64 {
	return int64(r.u64(40)<<flagBits) >> flagBits * int64(time.Microsecond)
}

func (r record) fingerprint() Fingerprint { return Fingerprint(r[24:40]) }

// payload returns the response's header and body as one piece of the cell.
func (r record) payload() []byte {
	start := r.nameEnd()
	return r[start : start+r.headerLen()+r.bodyLen()]
}

// named reports whether the record belongs to scope and key. Comparing the lengths first keeps
// ("ab", "c") and ("a", "bc") apart.
func (r record) named(scope, key string) bool {
	if r.u32(52) != uint32(len(scope))|uint32(len(key))<<16 {
		return false
	}
	name := r[recordHeader : recordHeader+len(scope)+len(key)]
	return string(name[len(scope):]) == key && string(name[:len(scope)]) == scope
}

// init writes a record without a response. The lengths bound every later read, so what the cell held
// before cannot be seen through it.
func (r record) init(scope, key string) {
	clear(r[:recordHeader])
	binary.LittleEndian.PutUint16(r[52:], uint16(len(scope)))
	binary.LittleEndian.PutUint16(r[54:], uint16(len(key)))
	copy(r[recordHeader:], scope)
	copy(r[recordHeader+len(scope):], key)
}

// claim makes the record in progress under a new token.
func (r record) claim(token uint64, fp Fingerprint, now int64) {
	r.setToken(token)
	copy(r[24:40], fp[:])
	r.mark(flagInProgress, now)
}

// lapsed reports whether the record is a claim whose lease has run out.
func (r record) lapsed(now int64) bool { return r.state() == flagInProgress && r.deadline() <= now }

// mark sets state and flags, and the time since which they hold. It lies before the engine's start when the record was
// restored.
func (r record) mark(flags uint64, now int64) {
	r.putU64(40, uint64(now/int64(time.Microsecond))&sinceMask|flags)
}

// setState changes the state and nothing else.
func (r record) setState(state uint64) { r.putU64(40, r.u64(40)&^stateFlags|state) }

func (r record) setToken(token uint64) { r.putU64(8, token) }

// finish makes the record done. The response's bytes are put beside it by putPayload.
func (r record) finish(resp *Response, now int64) {
	flags := uint64(flagDone)
	if resp.Failed {
		flags |= flagFailed
	}
	if resp.Truncated {
		flags |= flagTruncated
	}
	r.mark(flags, now)
	r.putU32(48, uint32(int32(resp.Status)))
	r.putU32(56, uint32(len(resp.Header)))
	r.putU32(60, uint32(len(resp.Body)))
}

// putPayload copies the response's header and body behind the key. There must be room for them.
func (r record) putPayload(resp *Response) {
	at := r.nameEnd()
	copy(r[at:], resp.Header)
	copy(r[at+len(resp.Header):], resp.Body)
}

// recordSize is the room that a record of these lengths takes.
func recordSize(scope, key string, payload int) int {
	return recordHeader + len(scope) + len(key) + payload
}
