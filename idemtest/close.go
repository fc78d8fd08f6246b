package idemtest

import (
	"io"

	"github.com/stretchr/testify/require"

	"github.com/seed-5bb5eb37/idem"
)

func closeRows() []Row {
	return []Row{{
		Name:        "close/ends everything",
		Explanation: "After Close every method returns ErrClosed and changes nothing. Closing again is fine.",
		needs:       Closer,
		run:         closeEndsEverything,
	}, {
		Name:        "close/wakes all",
		Explanation: "Close wakes all who wait, with ErrClosed.",
		needs:       Closer,
		run:         closeWakesAll,
	}}
}

// close closes the store.
func (r *rig) close() {
	r.Helper()
	closer, ok := r.store.(io.Closer)
	require.True(r, ok, "%T is no io.Closer; set Maker.Unsupported if it need not be one", r.store)
	require.NoError(r, closer.Close())
}

// closeEndsEverything is about calls that come while a process shuts down: none may seem to have worked.
func closeEndsEverything(r *rig) {
	ctx := r.Context()
	running, done := r.request("running"), r.request("done")
	c := r.fresh(running)
	r.done(done, text("done"))
	r.close()
	r.close()
	for _, req := range []idem.Request{running, waiting(running), done, r.request("new")} {
		_, err := r.store.Begin(ctx, req)
		require.ErrorIs(r, err, idem.ErrClosed, "Begin %q", req.Key)
	}
	require.ErrorIs(r, r.store.Complete(ctx, c, text("done")), idem.ErrClosed, "Complete")
	require.ErrorIs(r, r.store.Extend(ctx, c, long), idem.ErrClosed, "Extend")
	require.ErrorIs(r, r.store.Abandon(ctx, c), idem.ErrClosed, "Abandon")
	if !r.inspects() {
		return
	}
	_, _, err := r.inspector().Lookup(ctx, done.Scope, done.Key)
	require.ErrorIs(r, err, idem.ErrClosed, "Lookup")
	_, err = r.inspector().Forget(ctx, done.Scope, done.Key)
	require.ErrorIs(r, err, idem.ErrClosed, "Forget")
	require.ErrorIs(r, r.inspector().Resolve(ctx, running.Scope, running.Key, text("x")), idem.ErrClosed, "Resolve")
}

// closeWakesAll is for stores whose waiters would keep a process from ending.
func closeWakesAll(r *rig) {
	req := r.request("k")
	r.fresh(req)
	crowd := r.crowd(5, req)
	other := r.request("other")
	r.fresh(other)
	crowd.join(other)
	r.settle()
	r.close()
	for range 6 {
		require.ErrorIs(r, crowd.any().err, idem.ErrClosed)
	}
}
