package rival

import (
	"context"
	"fmt"
	"time"

	"github.com/seed-5bb5eb37/idem"
)

var idemEngine = Rival{Name: "idem", Module: "github.com/seed-5bb5eb37/idem", Claim: "its own", Open: openIdem}

type idemStore struct{ engine *idem.Engine }

// fingerprint is compared at every Begin, which no rival does.
var fingerprint = idem.FingerprintOf([]byte("payment"))

func openIdem(o Options) (Store, error) {
	const perRecord = 1024 // bytes: a bound, not an allocation
	e, err := idem.New(idem.Config{TTL: o.TTL, Lease: lease, MaxBytes: 1<<30 + perRecord*o.Records})
	if err != nil {
		return nil, err
	}
	return idemStore{e}, nil
}

func (s idemStore) begin(key string, buf []byte, wait bool) idem.Outcome {
	out, err := s.engine.Begin(context.Background(), idem.Request{Key: key, Fingerprint: fingerprint, Buf: buf, Wait: wait})
	if err != nil {
		panic(fmt.Sprintf("idem: begin: %v", err)) // a benchmark that is out of its limits
	}
	return out
}

func (s idemStore) Begin(key string, buf []byte) (State, []byte, Claim) {
	out := s.begin(key, buf, false)
	switch out.State {
	case idem.Fresh:
		return Fresh, buf, Claim{Idem: out.Claim}
	case idem.Replay:
		return Replay, out.Response.Body, Claim{}
	default:
		return InProgress, buf, Claim{}
	}
}

func (s idemStore) Complete(key string, c Claim, body []byte, ttl time.Duration) {
	c.Idem.Key = key
	if err := s.engine.Complete(context.Background(), c.Idem, idem.Response{Body: body, TTL: ttl}); err != nil {
		panic(fmt.Sprintf("idem: complete: %v", err))
	}
}

func (s idemStore) Wait(key string, buf []byte) []byte { return s.begin(key, buf, true).Response.Body }
func (s idemStore) Waiting() int                       { return s.engine.Stats().Waiting }
func (s idemStore) Close()                             { _ = s.engine.Close() }
