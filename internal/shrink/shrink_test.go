package shrink_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/shrink"
)

var (
	errTooLarge = errors.New("too large")
	errDown     = errors.New("down")
)

func TestSend(t *testing.T) {
	all := []shrink.Step{shrink.Whole, shrink.Short, shrink.OwnHeaders, shrink.Bare}
	for name, test := range map[string]struct {
		errs []error // of one step after the other
		want error
	}{
		"at once":              {[]error{nil}, nil},
		"when it is small":     {[]error{errTooLarge, errTooLarge, nil}, nil},
		"never":                {[]error{errTooLarge, errTooLarge, errTooLarge, errTooLarge}, errTooLarge},
		"not by another error": {[]error{errTooLarge, errDown}, errDown},
	} {
		t.Run(name, func(t *testing.T) {
			var steps []shrink.Step
			err := shrink.Send(func(err error) bool { return errors.Is(err, errTooLarge) }, func(s shrink.Step) error {
				steps = append(steps, s)
				return test.errs[len(steps)-1]
			})
			require.Equal(t, test.want, err)
			require.Equal(t, all[:len(test.errs)], steps)
		})
	}
}

func TestReason(t *testing.T) {
	long := strings.Repeat("x", 63) + "é" + "y"
	require.Equal(t, long, shrink.Whole.Reason(long))
	require.Equal(t, strings.Repeat("x", 63), shrink.Short.Reason(long), "not half a letter")
	require.Equal(t, "short", shrink.Bare.Reason("short"))
}
