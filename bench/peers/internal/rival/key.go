package rival

import "unsafe"

// KeyBytes is the length of all keys: that of a UUID.
const KeyBytes = 36

// A Key makes keys, each in the memory of the one before, as a server does that parses requests where it read
// them. One that came out of a large table of keys would cost a cache miss of its own. Not for use by several
// goroutines at once.
type Key struct{ text [KeyBytes]byte }

// At returns the i-th key. It is valid until the next call. Different i have different keys.
func (k *Key) At(i uint64) string {
	high := mix(i)
	t := &k.text
	put4(t[0:4], high>>48)
	put4(t[4:8], high>>32)
	put4(t[9:13], high>>16)
	put4(t[14:18], high)
	put4(t[19:23], i>>48)
	put4(t[24:28], i>>32)
	put4(t[28:32], i>>16)
	put4(t[32:36], i)
	t[8], t[13], t[18], t[23] = '-', '-', '-', '-'
	return unsafe.String(&t[0], KeyBytes)
}

// put4 writes the low 16 bits of v as four digits.
func put4(to []byte, v uint64) {
	high, low := &pairs[v>>8&0xff], &pairs[v&0xff]
	to[0], to[1], to[2], to[3] = high[0], high[1], low[0], low[1]
}

// pairs are the digits of all bytes: keys are made all the time, and what that takes is measured with the rest.
var pairs = func() (p [256][2]byte) {
	const digits = "0123456789abcdef"
	for i := range p {
		p[i] = [2]byte{digits[i>>4], digits[i&15]}
	}
	return p
}()

// mix spreads the bits of i (the finish of SplitMix64), so that keys have no common beginning.
func mix(i uint64) uint64 {
	i += 0x9e3779b97f4a7c15
	i = (i ^ i>>30) * 0xbf58476d1ce4e5b9
	i = (i ^ i>>27) * 0x94d049bb133111eb
	return i ^ i>>31
}
