package msgidem

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// isPermanent reports whether err is marked by [idem.Permanent]. Where in a tree of errors the mark counts only
// [idem.Do] knows, so it is asked, with a store that keeps nothing.
func isPermanent(err error) bool {
	_, got := idem.Do(context.Background(), judge{}, idem.Request{}, func(context.Context, idem.Claim) (idem.Response, error) {
		return idem.Response{}, err
	})
	// Do makes a FailedError that wraps err itself; one that err came with does not.
	failed, ok := got.(*idem.FailedError) //nolint:errorlint // the outermost one
	return ok && failed != err            //nolint:errorlint // the very same
}

// failureOf returns the record of a message that failed for good.
func failureOf(reason error) idem.Response {
	return idem.Response{Failed: true, Body: []byte(reason.Error())}
}

// A judge is a store that grants every claim and takes every result.
type judge struct{}

func (judge) Begin(context.Context, idem.Request) (idem.Outcome, error) {
	return idem.Outcome{State: idem.Fresh, Remaining: time.Hour}, nil
}
func (judge) Complete(context.Context, idem.Claim, idem.Response) error { return nil }
func (judge) Abandon(context.Context, idem.Claim) error                 { return nil }
func (judge) Extend(context.Context, idem.Claim, time.Duration) error   { return nil }
