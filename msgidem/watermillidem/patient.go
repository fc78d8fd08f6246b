package watermillidem

import (
	"context"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

// A patient store is one whose Begin waits for so long and no longer. [idem.Do] itself waits as long as its context
// lasts, which is the handler's as well.
type patient struct {
	idem.Store
	wait time.Duration
}

// Begin answers at once, unless the key is in progress and the request says that it may wait.
func (p *patient) Begin(ctx context.Context, req idem.Request) (idem.Outcome, error) {
	mayWait := req.Wait
	req.Wait = false
	out, err := p.Store.Begin(ctx, req)
	if err != nil || out.State != idem.InProgress || !mayWait {
		return out, err
	}
	waiting, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	req.Wait = true
	out, err = p.Store.Begin(waiting, req)
	if err == nil || waiting.Err() == nil || ctx.Err() != nil {
		return out, err
	}
	req.Wait = false
	return p.Store.Begin(ctx, req) // once more, to learn how long the lease lasts that was extended meanwhile
}
