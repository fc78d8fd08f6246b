// Package settled tells a claim that somebody else took from one that its own operation has completed.
package settled

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// lookTimeout bounds the look. Who has lost a claim must not wait long to be told.
const lookTimeout = time.Second

// ByOwner reports whether the operation itself has recorded the response of c, in the transaction of its effect for
// instance: then its claim can't be extended any more, and nothing is wrong. A store that can't be asked, or does not
// answer within a second, gives false.
func ByOwner(ctx context.Context, store idem.Store, c idem.Claim) bool {
	inspector, ok := store.(idem.Inspector)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	rec, found, err := inspector.Lookup(ctx, c.Scope, c.Key)
	return err == nil && found && rec.State == idem.Replay && rec.Token == c.Token
}
