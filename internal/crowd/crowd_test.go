package crowd_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
	"github.com/seed-5bb5eb37/idem/internal/crowd"
)

func TestMain(m *testing.M) {
	crowd.Main(openEngine)
	os.Exit(m.Run())
}

// openEngine opens an engine. Space says what its callers find: a key that is free, or claimed, in which case its owner
// completes it as soon as all wait, or never.
func openEngine(job crowd.Job) (crowd.Member, error) {
	engine, err := idem.New(idem.Config{})
	if err != nil || job.Space == "free" {
		return crowd.Member{Store: engine, Waiting: func() int { return 0 }}, err
	}
	req := job.Request
	req.Wait = false
	out, err := engine.Begin(context.Background(), req)
	return crowd.Member{
		Store: engine,
		Waiting: func() int {
			n := engine.Stats().Waiting
			if n == job.Callers && job.Space == "completed" {
				_ = engine.Complete(context.Background(), out.Claim, idem.Response{Body: []byte("done")})
			}
			return n
		},
		Calls: func() int64 { return 7 },
	}, err
}

func start(t *testing.T, space string) (*crowd.Crowd, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c, err := crowd.Start(ctx, crowd.Job{Space: space, Request: idem.Request{Key: "k", Wait: true}, Callers: 5}, 3)
	return c, cancel, err
}

func TestCrowd(t *testing.T) {
	t.Run("all are told", func(t *testing.T) {
		c, _, err := start(t, "completed")
		require.NoError(t, err)
		got, err := c.Wait()
		require.NoError(t, err)
		require.Equal(t, crowd.Report{Answers: map[string]int{"replay done": 15}, Calls: 21}, got)
	})
	t.Run("one does not wait", func(t *testing.T) {
		_, _, err := start(t, "free")
		require.ErrorContains(t, err, "not all wait")
		require.ErrorContains(t, err, "a caller does not wait: fresh")
	})
	t.Run("the test has waited long enough", func(t *testing.T) {
		c, cancel, err := start(t, "never completed")
		require.NoError(t, err)
		cancel()
		got, err := c.Wait()
		require.ErrorContains(t, err, "killed")
		require.Empty(t, got.Answers)
	})
}
