package rival

import (
	"encoding/binary"
	"time"
)

// Libraries that keep bytes are given a body followed by its deadline; a claim has no body. The body comes first,
// so that a library that appends to the caller's buffer puts it where it belongs.

const trailer = 8

// record appends the bytes of a record to b.
func record(b, body []byte, ttl time.Duration) []byte {
	return binary.LittleEndian.AppendUint64(append(b, body...), uint64(now()+int64(ttl)))
}

// parse splits a record. An empty body is a claim's.
func parse(record []byte) (body []byte, live bool) {
	if len(record) < trailer {
		return nil, false
	}
	cut := len(record) - trailer
	deadline := int64(binary.LittleEndian.Uint64(record[cut:]))
	return record[:cut], now() < deadline
}
