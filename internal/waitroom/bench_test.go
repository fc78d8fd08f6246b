package waitroom_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem/internal/waitroom"
)

// BenchmarkLoneCaller is what a store pays for the room when nobody else asks for the key.
func BenchmarkLoneCaller(b *testing.B) {
	r := waitroom.New[int](waitroom.Config{})
	found := func(context.Context, int) look { return done }
	b.ReportAllocs()
	for b.Loop() {
		result, err := r.Wait(context.Background(), key, found)
		require.NoError(b, err)
		require.Equal(b, done.Result, result)
	}
}
