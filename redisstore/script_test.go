package redisstore_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/redisstore"
)

// everything runs each action of a store once, and step after each.
func everything(t *testing.T, s *redisstore.Store, key string, step func(what string)) {
	t.Helper()
	ctx, req := t.Context(), request(key)
	did := func(what string, err error) {
		require.NoError(t, err, what)
		step(what)
	}
	c := fresh(t, s, req)
	step("Begin, fresh")
	expect(t, s, idem.InProgress, req)
	step("Begin, in progress")
	did("Extend", s.Extend(ctx, c, time.Millisecond/3))
	did("Extend, once more", s.Extend(ctx, c, long))
	_, _, err := s.Lookup(ctx, req.Scope, req.Key)
	did("Lookup", err)
	did("Complete", s.Complete(ctx, c, text("done")))
	did("Complete, once more", s.Complete(ctx, c, text("done")))
	expect(t, s, idem.Replay, req)
	step("Begin, replay")
	_, err = s.Forget(ctx, req.Scope, req.Key)
	did("Forget", err)
	did("Complete of what was forgotten", s.Complete(ctx, c, text("done")))
	_, err = s.Forget(ctx, req.Scope, req.Key)
	did("Forget, once more", err)
	did("Extend of what was forgotten", s.Extend(ctx, c, long))
	did("Abandon", s.Abandon(ctx, c))
	fresh(t, s, req)
	step("Begin, fresh after Abandon")
	did("Resolve", s.Resolve(ctx, req.Scope, req.Key, text("resolved")))
}

// A record without an end would be there for ever if its owner and all who ask for it are gone.
func TestEveryRecordHasAnEnd(t *testing.T) {
	c := connect(t)
	for _, policy := range []idem.LeasePolicy{idem.TakeOver, idem.Hold} {
		p := prefix()
		s := open(t, c, redisstore.Config{Prefix: p, OnLeaseExpiry: policy, TTL: time.Nanosecond})
		everything(t, open(t, c, redisstore.Config{Prefix: p, OnLeaseExpiry: policy}), "k", func(what string) {
			require.Positive(t, c.PTTL(t.Context(), name(p, "k")).Val(), what)
		})
		req := request("short")
		req.Lease = time.Nanosecond
		claim := fresh(t, s, req)
		require.Positive(t, c.PTTL(t.Context(), name(p, "short")).Val(), "a lease of a nanosecond")
		require.NoError(t, s.Complete(t.Context(), claim, text("done")))
		require.Positive(t, c.PTTL(t.Context(), name(p, "short")).Val(), "a TTL of a nanosecond")
	}
}

func TestScriptsAreLoadedAgainAfterAFlush(t *testing.T) {
	server, c := start(t)
	s := open(t, c, redisstore.Config{})
	everything(t, s, "k", func(string) {
		_, err := server.Do(t.Context(), "SCRIPT", "FLUSH")
		require.NoError(t, err)
	})
}

func TestFullServerThatRefusesScriptsWithFlags(t *testing.T) {
	// What Redis 6.2 answers to a script that begins with #!lua.
	refusal := errors.New("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'")
	server, c := start(t) // which has not seen a script with flags
	refused := 0
	c.AddHook(&tap{answer: func(args []any) error {
		if strings.HasPrefix(args[1].(string), "#!") {
			refused++
			return refusal
		}
		return nil
	}})
	s := open(t, c, redisstore.Config{})
	everything(t, s, "k", func(string) {})
	require.Zero(t, refused, "flags are of no use while there is room")
	claim := fresh(t, s, request("claimed"))
	_, err := server.Do(t.Context(), "CONFIG", "SET", "maxmemory", "1mb")
	require.NoError(t, err)
	err = s.Complete(t.Context(), claim, text("done"))
	require.ErrorContains(t, err, "OOM command not allowed")
	require.NotErrorIs(t, err, idem.ErrClaimLost)
	require.Equal(t, 1, refused)
	_, err = server.Do(t.Context(), "CONFIG", "SET", "maxmemory", "0")
	require.NoError(t, err)
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
}

// Leases and TTLs are the server's business. Were a time of day sent, two machines whose clocks differ would
// disagree about who holds a key.
func TestNoTimeOfDayIsSent(t *testing.T) {
	c := connect(t)
	tap := &tap{}
	c.AddHook(tap)
	// What is sent for the same actions at different times is the same, but for nonces and tokens, which
	// are the server's own times.
	p, runs := prefix(), [3][]string{} // in the first one the server may have to be sent the scripts
	for i := range runs {
		s := open(t, c, redisstore.Config{Prefix: p})
		claim := fresh(t, s, request("k"))
		tap.take()
		expect(t, s, idem.InProgress, request("k"))
		require.NoError(t, s.Extend(t.Context(), claim, long))
		require.NoError(t, s.Complete(t.Context(), claim, text("done")))
		_, err := s.Forget(t.Context(), "s", "k")
		require.NoError(t, err)
		for _, args := range tap.take() {
			args[4] = strings.ReplaceAll(args[4].(string), granted(claim), "token")
			packed := args[4].(string)
			if strings.HasSuffix(packed, string(claim.Fingerprint[:])) || len(packed) == 40+len("token") {
				args[4] = packed[:32] + packed[40:] // but for the nonce of begin or forget
			}
			runs[i] = append(runs[i], fmt.Sprintf("%q", args[4:]))
		}
	}
	require.Len(t, runs[1], 5) // Forget looks first
	require.Equal(t, runs[1], runs[2])
}

// Who asks again is compared with who asked first, not with what the owner makes of it.
func TestFingerprintIsTheRequests(t *testing.T) {
	s := open(t, connect(t), redisstore.Config{})
	req := request("k")
	claim := fresh(t, s, req)
	claim.Fingerprint[0]++
	require.NoError(t, s.Extend(t.Context(), claim, long))
	expect(t, s, idem.InProgress, req)
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	expect(t, s, idem.Replay, req)
}

// granted is a claim's token as servers know it.
func granted(c idem.Claim) string {
	return string(binary.BigEndian.AppendUint64(nil, c.Token>>10))
}

func TestTokensGrowWhenTheServersClockIsSetBack(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	for _, lose := range []func(idem.Claim) error{
		func(c idem.Claim) error { return s.Abandon(t.Context(), c) },
		func(c idem.Claim) error { _, err := s.Forget(t.Context(), c.Scope, c.Key); return err },
		func(c idem.Claim) error { return s.Extend(t.Context(), c, time.Nanosecond) },
		func(c idem.Claim) error {
			return s.Complete(t.Context(), c, idem.Response{TTL: time.Nanosecond})
		},
	} {
		claim := fresh(t, s, request("k"))
		// The record was made an hour later than it is now, by the clock as it is now.
		ahead := idem.Claim{Scope: claim.Scope, Key: claim.Key, Fingerprint: claim.Fingerprint}
		ahead.Token = claim.Token + uint64(long.Microseconds())<<10
		record := []byte(c.Get(t.Context(), name(p, "k")).Val())
		for _, at := range []int{25, 33} { // the token, and the highest token
			binary.BigEndian.PutUint64(record[at:], ahead.Token>>10)
		}
		require.NoError(t, c.Set(t.Context(), name(p, "k"), record, redis.KeepTTL).Err())
		require.NoError(t, lose(ahead))
		var next idem.Claim
		eventually(t, func() bool {
			out, err := s.Begin(t.Context(), request("k"))
			next = out.Claim
			return err == nil && out.State == idem.Fresh
		}, "free")
		require.Greater(t, next.Token, ahead.Token)
		require.NoError(t, s.Abandon(t.Context(), next))
		require.NoError(t, c.Del(t.Context(), name(p, "k")).Err())
	}
}

// A claim may be completed, or its record made anew, after the key had a higher token.
func TestHighestTokenOutlivesALateComplete(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	for _, key := range []string{"held", "free"} {
		claim := fresh(t, s, request(key))
		if key == "free" {
			require.NoError(t, s.Abandon(t.Context(), claim))
		}
		ahead := claim.Token>>10 + uint64(time.Hour.Microseconds())
		record := []byte(c.Get(t.Context(), name(p, key)).Val())
		binary.BigEndian.PutUint64(record[33:], ahead)
		require.NoError(t, c.Set(t.Context(), name(p, key), record, redis.KeepTTL).Err())
		require.NoError(t, s.Complete(t.Context(), claim, idem.Response{TTL: time.Nanosecond}))
		require.Greater(t, fresh(t, s, request(key)).Token>>10, ahead, key)
	}
}

// A WAIT that follows waits for what its connection wrote.
func TestSecondCompleteWritesAgain(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	claim := fresh(t, s, request("k"))
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	before := c.Get(t.Context(), name(p, "k")).Val()
	err := c.Watch(t.Context(), func(tx *redis.Tx) error {
		require.NoError(t, s.Complete(t.Context(), claim, text("other")))
		_, err := tx.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Ping(t.Context()).Err() })
		return err
	}, name(p, "k"))
	require.ErrorIs(t, err, redis.TxFailedErr)
	require.Equal(t, before, c.Get(t.Context(), name(p, "k")).Val())
}

// So do the scripts of an operator, when they come twice in one call.
func TestWhatComesTwiceWritesAgain(t *testing.T) {
	c, p := connect(t), prefix()
	tap := &tap{}
	c.AddHook(tap)
	s := open(t, c, redisstore.Config{Prefix: p})
	ways := map[string]func(key string){
		"resolve": func(key string) { require.NoError(t, s.Resolve(t.Context(), "s", key, text("resolved"))) },
		"forget": func(key string) {
			found, err := s.Forget(t.Context(), "s", key)
			require.NoError(t, err)
			require.True(t, found)
		},
	}
	for key, do := range ways {
		fresh(t, s, request(key))
		tap.take()
		do(key)
		sent := tap.take()
		before := c.Get(t.Context(), name(p, key)).Val()
		err := c.Watch(t.Context(), func(tx *redis.Tx) error {
			require.Equal(t, "K", c.Do(t.Context(), sent[len(sent)-1]...).Val())
			_, err := tx.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { return pipe.Ping(t.Context()).Err() })
			return err
		}, name(p, key))
		require.ErrorIs(t, err, redis.TxFailedErr, key)
		require.Equal(t, before, c.Get(t.Context(), name(p, key)).Val())
	}
}

// A Begin that does not know what it was granted must not give up what an operator did.
func TestOnlyAClaimHasTheNonceOfABegin(t *testing.T) {
	c, p := connect(t), prefix()
	tap := &tap{}
	c.AddHook(tap)
	s := open(t, c, redisstore.Config{Prefix: p})
	require.NoError(t, s.Abandon(t.Context(), fresh(t, s, request("k"))))
	sent := tap.take()
	abandon := sent[len(sent)-1]
	giveUp := func() any {
		nonce := c.Get(t.Context(), name(p, "k")).Val()[1:9]
		abandon[4] = abandon[4].(string)[:32] + "n" + nonce
		return c.Do(t.Context(), abandon...).Val()
	}
	fresh(t, s, request("k"))
	require.NoError(t, s.Resolve(t.Context(), "s", "k", text("resolved")))
	require.Equal(t, "N", giveUp())
	found, err := s.Forget(t.Context(), "s", "k")
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "N", giveUp())
	fresh(t, s, request("k"))
	require.Equal(t, "K", giveUp())
}

// Nodes of a cluster grant tokens by their own clocks. What keeps them apart is the slot.
func TestTokensHaveTheKeysSlot(t *testing.T) {
	_, c := start(t, "--cluster-enabled", "yes")
	s := open(t, connect(t), redisstore.Config{Prefix: "idemtest"})
	for _, key := range []string{"k", "1234567890", "{a}b", "x{a}b", "{}b", "{a", "a}b{c}d", "{{a}}", "\xff\x00"} {
		claim := fresh(t, s, request(key))
		require.NoError(t, s.Abandon(t.Context(), claim))
		slot, err := c.ClusterKeySlot(t.Context(), name("idemtest", key)).Result()
		require.NoError(t, err)
		require.Equal(t, uint64(slot)>>4, claim.Token&1023, "key %q", key)
	}
}

func TestWhatIsNoRecordIsAnError(t *testing.T) {
	c, p := connect(t), prefix()
	s := open(t, c, redisstore.Config{Prefix: p})
	require.NoError(t, c.HSet(t.Context(), name(p, "hash"), "f", "v").Err())
	_, err := s.Begin(t.Context(), request("hash"))
	require.ErrorContains(t, err, "WRONGTYPE")

	for _, alien := range []string{"", "v", strings.Repeat("v", 100)} {
		require.NoError(t, c.Set(t.Context(), name(p, "string"), alien, 0).Err())
		_, err = s.Begin(t.Context(), request("string"))
		require.ErrorContains(t, err, "malformed reply", "%q", alien)
		require.Equal(t, alien, c.Get(t.Context(), name(p, "string")).Val())
	}

	claim := fresh(t, s, request("short"))
	require.NoError(t, s.Complete(t.Context(), claim, text("done")))
	record := c.Get(t.Context(), name(p, "short")).Val()
	require.NoError(t, c.Set(t.Context(), name(p, "short"), record[:57+2], 0).Err())
	_, err = s.Begin(t.Context(), request("short"))
	require.ErrorContains(t, err, "malformed reply")
	_, _, err = s.Lookup(t.Context(), "s", "short")
	require.ErrorContains(t, err, "malformed reply")
}
