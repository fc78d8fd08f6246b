package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// errReply is returned for what no script of this version replies: another program wrote to the key.
var errReply = errors.New("redisstore: malformed reply")

const (
	// maxDuration is the longest duration that is sent, some 100 years: added to the time of day it is still
	// exact as one of Lua's numbers.
	maxDuration = 100 * 365 * 24 * time.Hour

	// minStay is how long a record is kept at least, though it may count for less. As long as it is there tokens
	// grow, even if the server's clock is set back or another server takes over whose clock is behind.
	minStay = time.Minute

	// Where things are in a record; lua/record.lua has its layout.
	atFingerprint = 9
	atToken       = 25
	atSince       = 41 // of a claim
	claimSize     = 57 // without channels
	atStamp       = 49 // of a response

	lookupHead = 1 + 8 // what comes before the record in a reply of lookup
)

// spanSize is the size of a packed span: two numbers of 8 bytes, and 13 digits at most before zeros.
const spanSize = 2*8 + 16

// A span is how long something counts, as scripts take it.
type span struct {
	d      time.Duration
	packed string // how long, how long the key is then unknown, how long the record stays: what ARGV[1] begins with
	done   byte   // state of a response with this TTL: 'd' when the record ends with it, and 'e' when it stays longer
}

// newSpan returns the span of something that counts for d, after which its record has a meaning for a while yet.
// unknown is for how long keys of the store are unknown.
func newSpan(d, while, unknown time.Duration) span {
	d = min(d, maxDuration)
	s := span{d: d, done: 'd'}
	life := d + while
	if life < minStay {
		life, s.done = minStay, 'e'
	}
	b := make([]byte, 0, spanSize)
	// Rounded up: what was asked for is not cut short, and what is above zero stays so.
	b = binary.BigEndian.AppendUint64(b, ceil(d, time.Microsecond))
	b = binary.BigEndian.AppendUint64(b, ceil(unknown, time.Microsecond))
	// Servers reckon from the ms that runs. No record may end too soon by that.
	b = strconv.AppendUint(b, ceil(life, time.Millisecond)+1, 10)
	s.packed = string(b[:spanSize])
	return s
}

func ceil(d, unit time.Duration) uint64 { return uint64((d + unit - 1) / unit) }

// The first argument of scripts, by what comes after the span.

func (s *span) begin(nonce uint64, fingerprint idem.Fingerprint) string {
	b := append(make([]byte, 0, spanSize+8+16), s.packed...)
	b = binary.BigEndian.AppendUint64(b, nonce)
	return string(append(b, fingerprint[:]...))
}

func (s *span) extend(fingerprint idem.Fingerprint, token uint64) string {
	b := append(make([]byte, 0, spanSize+16+8), s.packed...)
	b = append(b, fingerprint[:]...)
	return string(binary.BigEndian.AppendUint64(b, token))
}

// complete is what the record of a response begins with, if all is as its owner takes it to be.
func (s *span) complete(fingerprint idem.Fingerprint, token uint64) string {
	b := append(make([]byte, 0, spanSize+atStamp), s.packed...)
	b = append(b, s.done, 0, 0, 0, 0, 0, 0, 0, 0)
	b = append(b, fingerprint[:]...)
	b = binary.BigEndian.AppendUint64(b, token)
	b = binary.BigEndian.AppendUint64(b, token)
	return string(append(b, s.packed[:8]...))
}

func (s *span) abandon(kind byte, tokenOrNonce uint64) string {
	b := append(make([]byte, 0, spanSize+1+8), s.packed...)
	return string(binary.BigEndian.AppendUint64(append(b, kind), tokenOrNonce))
}

// operator is for who has looked the token up: by the nonce a script knows a call that comes twice from a second call.
func (s *span) operator(nonce, token uint64, state ...byte) string {
	b := append(make([]byte, 0, spanSize+1+8+8), s.packed...)
	b = binary.BigEndian.AppendUint64(append(b, state...), nonce)
	return string(binary.BigEndian.AppendUint64(b, token))
}

// A response is kept as flags (1 byte, no digit), status (4), length of the header (4), header, body. Servers don't look
// into it.
const (
	responseHead = 9

	flagFailed    = 1
	flagTruncated = 2
)

func packResponse(r *idem.Response) string {
	var head [responseHead]byte
	if r.Failed {
		head[0] |= flagFailed
	}
	if r.Truncated {
		head[0] |= flagTruncated
	}
	binary.BigEndian.PutUint32(head[1:], uint32(int32(r.Status)))
	binary.BigEndian.PutUint32(head[5:], uint32(len(r.Header)))
	// A builder, since its string is not copied once more.
	var b strings.Builder
	b.Grow(len(head) + len(r.Header) + len(r.Body))
	b.Write(head[:])
	b.Write(r.Header)
	b.Write(r.Body)
	return b.String()
}

// unpackResponse appends header and body of a record to buf[:0] and has r share them.
func unpackResponse(m string, buf []byte, r *idem.Response) error {
	text, err := unpackStamp(m, r)
	if err != nil {
		return err
	}
	if len(text) < responseHead {
		return fmt.Errorf("%w: response of %d bytes", errReply, len(text))
	}
	header := int(uint32At(text, 5))
	if header > len(text)-responseHead {
		return fmt.Errorf("%w: response of %d bytes with a header of %d", errReply, len(text), header)
	}
	r.Failed = text[0]&flagFailed != 0
	r.Truncated = text[0]&flagTruncated != 0
	r.Status = int(int32(uint32At(text, 1)))
	buf = append(buf[:0], text[responseHead:]...)
	// The header must not grow into the body.
	r.Header, r.Body = buf[:header:header], buf[header:]
	return nil
}

// unpackStamp takes from a record when its response was recorded, and returns what comes after it.
func unpackStamp(m string, r *idem.Response) (rest string, err error) {
	if len(m) < atStamp {
		return "", fmt.Errorf("%w: record of %d bytes", errReply, len(m))
	}
	seconds, rest, err := digits(m[atStamp:])
	if err != nil || rest == "" || rest[0] != '.' {
		return "", fmt.Errorf("%w: no time in %.20q", errReply, m[atStamp:])
	}
	micros, rest, err := digits(rest[1:])
	if err != nil {
		return "", fmt.Errorf("%w: no time in %.20q", errReply, m[atStamp:])
	}
	r.StoredAt = time.Unix(seconds, micros*1000)
	return rest, nil
}

// digits returns the number that text begins with, and what comes after it.
func digits(text string) (n int64, rest string, err error) {
	end := 0
	for end < len(text) && '0' <= text[end] && text[end] <= '9' {
		end++
	}
	n, err = strconv.ParseInt(text[:end], 10, 64)
	return n, text[end:], err
}

// outcome turns a reply of begin into what [Store.Begin] returns.
func outcome(text string, req *idem.Request, key string, lease time.Duration) (out idem.Outcome, err error) {
	switch verdict := text[0]; {
	case verdict == 'c' && len(text) == claimSize:
		out.State, out.Remaining = idem.Fresh, lease
		out.Claim = idem.Claim{Scope: req.Scope, Key: req.Key, Fingerprint: req.Fingerprint, Token: token(uint64At(text, atToken), key)}
	case verdict == 'd' || verdict == 'e':
		out.State = idem.Replay
		err = unpackResponse(text, req.Buf, &out.Response)
	case verdict == 'P' && len(text) == 1+8:
		out.State, out.Remaining = idem.InProgress, microsAt(text, 1)
	case text == "M":
		out.State = idem.Mismatch
	case text == "U":
		out.State = idem.Unknown
	default:
		err = fmt.Errorf("%w: %.20q", errReply, text)
	}
	return out, err
}

// record turns a reply of lookup other than "there is none" into what [Store.Lookup] returns.
func record(text, key string, rec *idem.Record) error {
	if len(text) < lookupHead+claimSize {
		return fmt.Errorf("%w: %.20q", errReply, text)
	}
	m := text[lookupHead:]
	copy(rec.Fingerprint[:], m[atFingerprint:])
	rec.Token = token(uint64At(m, atToken), key)
	rec.Remaining = microsAt(text, 1)
	switch text[0] {
	case 'P':
		rec.State, rec.Since = idem.InProgress, timeAt(m, atSince)
	case 'U':
		rec.State, rec.Since = idem.Unknown, timeAt(m, atSince)
	case 'R':
		rec.State = idem.Replay
		err := unpackResponse(m, nil, &rec.Response)
		rec.Since = rec.Response.StoredAt
		return err
	default:
		return fmt.Errorf("%w: %.20q", errReply, text)
	}
	return nil
}

func timeAt(text string, i int) time.Time { return time.UnixMicro(int64(uint64At(text, i))) }

func microsAt(text string, i int) time.Duration {
	return time.Duration(min(uint64At(text, i), ceil(2*maxDuration, time.Microsecond))) * time.Microsecond
}

func uint64At(text string, i int) uint64 {
	return uint64(uint32At(text, i))<<32 | uint64(uint32At(text, i+4))
}

func uint32At(text string, i int) uint32 {
	return uint32(text[i])<<24 | uint32(text[i+1])<<16 | uint32(text[i+2])<<8 | uint32(text[i+3])
}
