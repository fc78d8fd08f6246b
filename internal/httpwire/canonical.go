package httpwire

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxJSONDepth bounds the recursion, and with it the copying that sorting members costs.
const maxJSONDepth = 64

var errNoJSON = errors.New("the body is not a JSON text")

// CanonicalJSON returns the canonical form of a JSON text, as described at httpidem.FingerprintJSON, which is nothing if there is
// none. Its errors say what is wrong with the body of a request.
//
// It does not use encoding/json, which replaces what is invalid in a string, folds the case of names and
// takes the last of two members with one name: each makes equal what is not.
func CanonicalJSON(in []byte) ([]byte, error) {
	if len(in) == 0 {
		return nil, nil
	}
	if !utf8.Valid(in) {
		return nil, errors.New("the body is not valid UTF-8")
	}
	c := canonicalizer{in: in, out: make([]byte, 0, len(in))}
	if err := c.value(0); err != nil {
		return nil, err
	}
	if c.peek() != 0 || c.pos < len(in) {
		return nil, errNoJSON
	}
	return c.out, nil
}

// canonicalizer reads in from pos on and appends to out.
type canonicalizer struct {
	in  []byte
	pos int
	out []byte
}

// peek skips white space and returns the byte that comes next, or zero at the end.
func (c *canonicalizer) peek() byte {
	for ; c.pos < len(c.in); c.pos++ {
		switch b := c.in[c.pos]; b {
		case ' ', '\t', '\r', '\n':
		default:
			return b
		}
	}
	return 0
}

// take skips b, and tells whether it was there.
func (c *canonicalizer) take(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.pos++
	return true
}

// value reads a value of any kind. depth is how many objects and arrays it is in.
func (c *canonicalizer) value(depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("the JSON text is nested deeper than %d", maxJSONDepth)
	}
	switch b := c.peek(); b {
	case '{':
		return c.object(depth)
	case '[':
		return c.array(depth)
	case '"':
		return c.string()
	case 't':
		return c.literal("true")
	case 'f':
		return c.literal("false")
	case 'n':
		return c.literal("null")
	default:
		return c.number()
	}
}

// literal reads one of the three names. What follows directly after it is refused by whoever reads on.
func (c *canonicalizer) literal(word string) error {
	if !bytes.HasPrefix(c.in[c.pos:], []byte(word)) {
		return errNoJSON
	}
	c.pos += len(word)
	c.out = append(c.out, word...)
	return nil
}

// array reads an array and keeps its order, which means something.
func (c *canonicalizer) array(depth int) error {
	c.pos++
	c.out = append(c.out, '[')
	for first := true; !c.take(']'); first = false {
		if !first {
			if !c.take(',') {
				return errNoJSON
			}
			c.out = append(c.out, ',')
		}
		if err := c.value(depth + 1); err != nil {
			return err
		}
	}
	c.out = append(c.out, ']')
	return nil
}

// member is where a member of an object stands in out. Its text is out[start:end], its name, quotes
// included, out[start:colon].
type member struct{ start, colon, end int }

// object reads an object. Its members are canonical one by one before they are put in order.
func (c *canonicalizer) object(depth int) error {
	c.pos++
	c.out = append(c.out, '{')
	begin := len(c.out)
	var members []member
	for !c.take('}') {
		if len(members) > 0 && !c.take(',') {
			return errNoJSON
		}
		m, err := c.member(depth)
		if err != nil {
			return err
		}
		members = append(members, m)
	}
	return c.sortMembers(begin, members)
}

// member reads a name and its value.
func (c *canonicalizer) member(depth int) (m member, err error) {
	m.start = len(c.out)
	if c.peek() != '"' {
		return m, errNoJSON
	}
	if err = c.string(); err != nil {
		return m, err
	}
	m.colon = len(c.out)
	if !c.take(':') {
		return m, errNoJSON
	}
	c.out = append(c.out, ':')
	err = c.value(depth + 1)
	m.end = len(c.out)
	return m, err
}

// sortMembers puts the members of an object, which fill out from begin on, in order. Names are compared in
// their canonical form, so that an escape does not hide a duplicate. Every level of nesting copies what is
// below it, which is why the depth has a limit that no request needs.
func (c *canonicalizer) sortMembers(begin int, members []member) error {
	text := slices.Clone(c.out[begin:])
	name := func(m member) []byte { return text[m.start-begin : m.colon-begin] }
	compare := func(a, b member) int { return bytes.Compare(name(a), name(b)) }
	slices.SortFunc(members, compare)

	c.out = c.out[:begin]
	for i, m := range members {
		if i > 0 {
			if compare(members[i-1], m) == 0 {
				return fmt.Errorf("the JSON text has two members %s in one object", name(m))
			}
			c.out = append(c.out, ',')
		}
		c.out = append(c.out, text[m.start-begin:m.end-begin]...)
	}
	c.out = append(c.out, '}')
	return nil
}

// number copies a number as it is written: [ minus ] int [ frac ] [ exp ], where int has no leading zero.
// To compare values would need a decision about precision that handlers don't share.
func (c *canonicalizer) number() error {
	start := c.pos
	c.skip("-", 1)
	whole := c.digits()
	ok := whole == 1 || (whole > 1 && c.in[c.pos-whole] != '0')
	if c.skip(".", 1) {
		ok = c.digits() > 0 && ok
	}
	if c.skip("eE", 1) {
		c.skip("+-", 1)
		ok = c.digits() > 0 && ok
	}
	if !ok {
		return errNoJSON
	}
	c.out = append(c.out, c.in[start:c.pos]...)
	return nil
}

// skip skips up to n bytes of set, and tells whether there was one.
func (c *canonicalizer) skip(set string, n int) bool {
	start := c.pos
	for c.pos < len(c.in) && c.pos < start+n && bytes.IndexByte([]byte(set), c.in[c.pos]) >= 0 {
		c.pos++
	}
	return c.pos > start
}

// digits skips digits and returns how many there were.
func (c *canonicalizer) digits() int {
	start := c.pos
	c.skip("0123456789", len(c.in))
	return c.pos - start
}

// string copies a string, with its quotes, and writes what was escaped as the character itself.
func (c *canonicalizer) string() error {
	c.pos++
	c.out = append(c.out, '"')
	for c.pos < len(c.in) {
		b := c.in[c.pos]
		c.pos++
		switch {
		case b == '"':
			c.out = append(c.out, '"')
			return nil
		case b < ' ':
			return errNoJSON
		case b == '\\':
			if err := c.escape(); err != nil {
				return err
			}
		default:
			c.out = append(c.out, b)
		}
	}
	return errNoJSON
}

// escape reads what follows a backslash.
func (c *canonicalizer) escape() error {
	if c.pos == len(c.in) {
		return errNoJSON
	}
	b := c.in[c.pos]
	c.pos++
	if b == 'u' {
		return c.unicodeEscape()
	}
	i := bytes.IndexByte([]byte(`"\/bfnrt`), b)
	if i < 0 {
		return errNoJSON
	}
	c.character(rune("\"\\/\b\f\n\r\t"[i]))
	return nil
}

// unicodeEscape reads what follows \u, and the second half if it is that of a surrogate pair.
func (c *canonicalizer) unicodeEscape() error {
	r, ok := c.hex()
	if ok && utf16.IsSurrogate(r) {
		if !bytes.HasPrefix(c.in[c.pos:], []byte(`\u`)) {
			return errors.New("the JSON text has half a surrogate pair in a string")
		}
		c.pos += len(`\u`)
		var low rune
		low, ok = c.hex()
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return errors.New("the JSON text has half a surrogate pair in a string")
		}
	}
	if !ok {
		return errNoJSON
	}
	c.character(r)
	return nil
}

// hex reads the four digits of an escape. ParseUint takes no sign and, with a base, no underscore.
func (c *canonicalizer) hex() (rune, bool) {
	if len(c.in)-c.pos < 4 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(c.in[c.pos:c.pos+4]), 16, 16)
	c.pos += 4
	return rune(v), err == nil
}

// character appends r, escaped only if it can't stand in a string as it is.
func (c *canonicalizer) character(r rune) {
	switch {
	case r == '"' || r == '\\':
		c.out = append(c.out, '\\', byte(r))
	case r < ' ':
		c.out = fmt.Appendf(c.out, `\u%04x`, r)
	default:
		c.out = utf8.AppendRune(c.out, r)
	}
}
