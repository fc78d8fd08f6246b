package redisstore

import (
	"strconv"
	"strings"
)

// redisKey returns the key under which a record is kept: prefix:length of the scope:scope:key. With the length in
// it no two pairs of scope and key make the same name, whatever their bytes.
func (s *Store) redisKey(scope, key string) string {
	var b strings.Builder
	b.Grow(len(s.keys) + 7 + len(scope) + len(key))
	b.WriteString(s.keys)
	var digits [5]byte
	b.Write(strconv.AppendInt(digits[:0], int64(len(scope)), 10))
	b.WriteByte(':')
	b.WriteString(scope)
	b.WriteByte(':')
	b.WriteString(key)
	return b.String()
}

// splitKey is the reverse of redisKey. It reports false for what redisKey did not make.
func (s *Store) splitKey(name string) (scope, key string, ok bool) {
	rest, ok := strings.CutPrefix(name, s.keys)
	if !ok {
		return "", "", false
	}
	digits, rest, ok := strings.Cut(rest, ":")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 || n >= len(rest) || rest[n] != ':' {
		return "", "", false
	}
	return rest[:n], rest[n+1:], true
}

// Servers count tokens in µs of their clocks. Two keys on different nodes of a cluster may be claimed in the same
// µs, so a [idem.Claim.Token] has the key's slot below them, which is never on two nodes: the upper 10 of its
// 14 bits, as the neighbouring slots are on one node too. The whole fits into a signed 64-bit column until
// the year 2255.
const slotBits = 10

// token makes what a server granted for the key a token of the store's.
func token(micros uint64, key string) uint64 {
	return micros<<slotBits | slotOf(key)
}

// micros is the reverse of token. It reports false for a token that no server granted for the key.
func micros(token uint64, key string) (uint64, bool) {
	return token >> slotBits, token != 0 && token&(1<<slotBits-1) == slotOf(key)
}

// slotOf returns the upper bits of the slot in which a cluster keeps the key: a CRC of the whole, or of what is
// between the first braces if there is something.
func slotOf(key string) uint64 {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return uint64(crc&(1<<14-1)) >> (14 - slotBits)
}

// crcTable is for the CRC-16 of XMODEM, polynomial 0x1021.
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc>>15 == 1
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
