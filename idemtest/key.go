package idemtest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// keyLimit is the limit of keys and scopes that the rows about it set, the default of the engine.
const keyLimit = 255

func keyRows() []Row {
	return []Row{{
		Name: "key/length",
		Explanation: "A key of no bytes or more than the limit, or a scope of more than the limit, is ErrKey and claims " +
			"nothing. Lengths count bytes. A scope may be empty.",
		needs:  MaxKeyBytes,
		config: Config{MaxKeyBytes: keyLimit},
		run:    keyLength,
	}, {
		Name: "key/length of a claim",
		Explanation: "Complete, Extend and Abandon of a claim whose key is too long is ErrKey; so it is for the methods " +
			"of an Inspector.",
		needs:  MaxKeyBytes | Inspector,
		config: Config{MaxKeyBytes: keyLimit},
		run:    keyLengthOfAClaim,
	}, {
		Name:        "key/every byte counts",
		Explanation: "Keys, and scopes, that are as long as the limit and differ in one byte are different, wherever it is.",
		needs:       MaxKeyBytes,
		config:      Config{MaxKeyBytes: keyLimit},
		run:         everyByteCounts,
	}, {
		Name: "key/bytes are bytes",
		Explanation: "Keys are kept as they are: NUL, invalid UTF-8, case, spaces, prefixes and forms of Unicode that " +
			"look alike all make different keys.",
		run: keysAreBytes,
	}, {
		Name: "key/scopes are apart",
		Explanation: "The same key in two scopes is two keys, and so are two pairs of scope and key that would be the " +
			"same if they were joined, with whatever between them.",
		run: scopesAreApart,
	}, {
		Name: "key/each has its own record",
		Explanation: "Keys do not disturb each other: each is claimed once, and each replays its own response, however " +
			"many are used at the same time.",
		run: eachKeyHasItsOwnRecord,
	}}
}

// keyLength is for stores that leave the length to a column of a table, which cuts keys off or fails
// halfway.
func keyLength(r *rig) {
	sized := func(n int) string { return strings.Repeat("k", n) }
	for _, bad := range []string{"", sized(keyLimit + 1), strings.Repeat("é", keyLimit/2) + "éé", sized(64 << 10)} {
		_, err := r.store.Begin(r.Context(), r.request(bad))
		require.ErrorIs(r, err, idem.ErrKey, "key of %d bytes", len(bad))
	}
	for _, scope := range []string{"", r.scope + sized(keyLimit-len(r.scope))} {
		// The scope may be empty, so that only the key keeps rows apart.
		req := idem.Request{Scope: scope, Key: r.scope + sized(keyLimit-len(r.scope)), Lease: long}
		r.done(req, text("longest"))
		r.replays("longest", req)
	}
	req := r.request("k")
	req.Scope += sized(keyLimit + 1 - len(r.scope))
	_, err := r.store.Begin(r.Context(), req)
	require.ErrorIs(r, err, idem.ErrKey, "scope of %d bytes", len(req.Scope))
}

// keyLengthOfAClaim is about claims that come from elsewhere: what Begin would not have taken is not
// written by Complete.
func keyLengthOfAClaim(r *rig) {
	c := idem.Claim{Scope: r.scope, Key: strings.Repeat("k", keyLimit+1), Token: r.fresh(r.request("k")).Token}
	ctx, inspector := r.Context(), r.inspector()
	require.ErrorIs(r, r.store.Complete(ctx, c, text("x")), idem.ErrKey, "Complete")
	require.ErrorIs(r, r.store.Extend(ctx, c, long), idem.ErrKey, "Extend")
	require.ErrorIs(r, r.store.Abandon(ctx, c), idem.ErrKey, "Abandon")
	_, _, err := inspector.Lookup(ctx, c.Scope, c.Key)
	require.ErrorIs(r, err, idem.ErrKey, "Lookup")
	_, err = inspector.Forget(ctx, c.Scope, c.Key)
	require.ErrorIs(r, err, idem.ErrKey, "Forget")
	require.ErrorIs(r, inspector.Resolve(ctx, c.Scope, c.Key, text("x")), idem.ErrKey, "Resolve")
}

// everyByteCounts is for stores whose index takes only the first bytes of a key.
func everyByteCounts(r *rig) {
	key := strings.Repeat("k", keyLimit)
	scope := r.scope + key[len(r.scope):]
	all := [][2]string{{r.scope, key}, {scope, "k"}}
	for _, at := range []int{31, 32, 63, 64, 99, 127, 128, 190, 191, 199, 200, 253, 254} {
		all = append(all, [2]string{r.scope, key[:at] + "x" + key[at+1:]}, [2]string{scope[:at] + "x" + scope[at+1:], "k"})
	}
	r.keepsApart(all)
}

// keysAreBytes is for stores whose keys pass through something that compares text: a collation, a file
// system, JSON.
func keysAreBytes(r *rig) {
	keys := []string{
		"key", "Key", "KEY", "key ", " key", "key\t", "key\n", "key\x00", "\x00key", "ke", "key\x00\x00",
		"k\u00e9y", "ke\u0301y", "k\xe9y", "k\xc3y", "\xff", "\xfe", "\ufffd", "\x00", " ", "\x7f", "\u202ekey",
		"\u212a", "k", "stra\u00dfe", "strasse", "k\u0131y", "%6Bey", "key%00", `key\0`, `"key"`, "'key'",
		"NULL", "0", "00",
		// Each two have the same CRC-32, hashCode of Java, djb2, and FNV-1a of 32 and 64 bits.
		"plumless", "buckeroo", "Aa", "BB", "Ab", "BA", "costarring", "liquid",
		"8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ",
	}
	r.keepsApart(pairs(r.scope, keys))
}

func pairs(scope string, keys []string) (pairs [][2]string) {
	for _, key := range keys {
		pairs = append(pairs, [2]string{scope, key})
	}
	return pairs
}

// scopesAreApart is for stores that make one name of scope and key: a tenant that may choose keys could
// then choose those of another one.
func scopesAreApart(r *rig) {
	s := r.scope
	all := [][2]string{
		{s, "k"}, {s + "k", s}, {"", s + "k"}, {s, s + "k"}, {s + s, "k"}, {s + "1", "1k"}, {s + "11", "k"},
	}
	for _, sep := range []string{":", "/", "|", "\x00", "\x1f", " ", "-", ".", "}", "\xff", ","} {
		// Each two pairs are equal when they are joined with sep.
		all = append(all, [2]string{s + "a" + sep + "b", "c"}, [2]string{s + "a", "b" + sep + "c"},
			[2]string{s, sep + "c"}, [2]string{s + sep, "c"}, [2]string{"", s + sep + "c"})
	}
	r.keepsApart(all)
}

// keepsApart wants that each pair of scope and key is a record of its own. Fingerprints are equal: a
// Mismatch could not hide that two are not.
func (r *rig) keepsApart(pairs [][2]string) {
	r.Helper()
	claims := make([]idem.Claim, len(pairs))
	for i, p := range pairs {
		out := r.begin(idem.Request{Scope: p[0], Key: p[1], Lease: long})
		require.Equal(r, idem.Fresh.String(), out.State.String(), "scope %q, key %q", p[0], p[1])
		claims[i] = out.Claim
	}
	for i, c := range claims {
		require.Equal(r, pairs[i][0], c.Scope)
		require.Equal(r, pairs[i][1], c.Key)
		r.complete(c, text(fmt.Sprint(i)))
	}
	for i, p := range pairs {
		r.replays(fmt.Sprint(i), idem.Request{Scope: p[0], Key: p[1]})
	}
}

// eachKeyHasItsOwnRecord is for what callers of different keys share without wanting to: a buffer, a
// connection, a hash.
func eachKeyHasItsOwnRecord(r *rig) {
	errs := make([]error, 8)
	var done sync.WaitGroup
	for caller := range errs {
		done.Go(func() {
			for i := 0; i < 10*r.rounds() && errs[caller] == nil; i++ {
				errs[caller] = r.cycle(fmt.Sprintf("%d of %d", i, caller))
			}
		})
	}
	done.Wait()
	require.NoError(r, errors.Join(errs...))
}

// cycle begins, completes and replays key. It may be called by any goroutine.
func (r *rig) cycle(key string) error {
	first, err := r.store.Begin(r.Context(), r.request(key))
	if err != nil {
		return err
	}
	if err = r.store.Complete(r.Context(), first.Claim, text(key)); err != nil {
		return fmt.Errorf("completing %q, which was %v: %w", key, first.State, err)
	}
	second, err := r.store.Begin(r.Context(), r.request(key))
	if err != nil {
		return err
	}
	if first.State != idem.Fresh || string(second.Response.Body) != key {
		return fmt.Errorf("%q was %v, then %v with the body %q", key, first.State, second.State, second.Response.Body)
	}
	return nil
}
