package idem_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

// Parts that are the same bytes when they are joined are different requests.
func TestFingerprintOf(t *testing.T) {
	seen := map[idem.Fingerprint]string{}
	for _, parts := range [][]string{
		nil, {""}, {"", ""}, {"abc"}, {"ab", "c"}, {"a", "bc"}, {"", "abc"}, {"abc", ""}, {"a", "b", "c"}, {"ABC"}, {"abc\x00"},
	} {
		var in [][]byte
		for _, p := range parts {
			in = append(in, []byte(p))
		}
		f := idem.FingerprintOf(in...)
		require.Equal(t, f, idem.FingerprintOf(in...))
		require.NotContains(t, seen, f, "%q", parts)
		seen[f] = fmt.Sprint(parts)
	}
	for i := range 50_000 { // short ones, of which a weak sum makes one
		f := idem.FingerprintOf(fmt.Append(nil, i))
		if other, twice := seen[f]; twice {
			t.Fatalf("%d and %s", i, other)
		}
		seen[f] = "a number"
	}
}

func TestFingerprintIsText(t *testing.T) {
	f := idem.Fingerprint{0: 0xab, 15: 0x01}
	require.Equal(t, "ab000000000000000000000000000001", f.String())
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.Equal(t, `"`+f.String()+`"`, string(text))
	var back idem.Fingerprint
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, f, back)

	for _, bad := range []string{"", "ab", strings.Repeat("a", 31), strings.Repeat("a", 33), strings.Repeat("g", 32)} {
		require.ErrorContains(t, back.UnmarshalText([]byte(bad)), "idem: fingerprint", "%q", bad)
		require.Equal(t, f, back, "a failure leaves it as it was")
	}
}

func TestStateHasAName(t *testing.T) {
	for state, name := range map[idem.State]string{
		idem.Fresh: "fresh", idem.InProgress: "in progress", idem.Replay: "replay", idem.Mismatch: "mismatch",
		idem.Unknown: "unknown", 0: "State(0)", 99: "State(99)",
	} {
		require.Equal(t, name, state.String())
	}
}
