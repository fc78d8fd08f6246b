package pgstore

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/seed-5bb5eb37/idem"
)

// A record is what statements return of a row. All times are the server's.
type record struct {
	token       pgtype.Int8
	fingerprint pgtype.DriverBytes // the driver's until the rows are closed, as header and body are; nil: no record
	completed   pgtype.Timestamptz // not valid: no response is recorded
	failed      pgtype.Bool
	status      pgtype.Int4
	truncated   pgtype.Bool
	header      pgtype.DriverBytes
	body        pgtype.DriverBytes
	leaseUntil  pgtype.Timestamptz
	now         pgtype.Timestamptz
	created     time.Time // from here on of a look-up only
	expires     time.Time
}

// scan reads the row that rows is at.
func (r *record) scan(rows pgx.Rows) error {
	all := [...]any{
		&r.token, &r.fingerprint, &r.completed, &r.failed, &r.status, &r.truncated, &r.header, &r.body,
		&r.leaseUntil, &r.now, &r.created, &r.expires,
	}
	return rows.Scan(all[:len(rows.RawValues())]...)
}

// state is what a caller with the right fingerprint is told of a record.
func (r *record) state() idem.State {
	switch {
	case r.completed.Valid:
		return idem.Replay
	case r.leaseUntil.Time.After(r.now.Time):
		return idem.InProgress
	default:
		return idem.Unknown
	}
}

// until is how long it is until t. Not even when the rest was lost on the way is it zero, which would be read as nothing
// to wait for.
func (r *record) until(t time.Time) time.Duration { return max(t.Sub(r.now.Time), time.Microsecond) }

// response copies the recorded response, into buf if there is room.
func (r *record) response(buf []byte) idem.Response {
	resp := idem.Response{
		Status: int(r.status.Int32), Failed: r.failed.Bool, Truncated: r.truncated.Bool, StoredAt: r.completed.Time,
	}
	fill(&resp, buf, r.header, r.body)
	return resp
}

// fill appends header and body to buf[:0] and makes resp's of that. The header's capacity ends where the body begins,
// so that appending to it does not spoil the body.
func fill(resp *idem.Response, buf, header, body []byte) {
	n := len(header)
	if need := n + len(body); cap(buf) < need {
		buf = make([]byte, 0, need)
	}
	all := append(append(buf[:0], header...), body...)
	resp.Header, resp.Body = all[:n:n], all[n:]
}
