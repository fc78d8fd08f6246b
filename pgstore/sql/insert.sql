-- Insert: claims a key that has no row, as a key that is new has none. It returns nothing when there is a row, whatever that
-- says: then begin.sql looks at it. It returns null when it had to wait for another transaction, so that part of the lease
-- is over: begin.sql finds the claim by its nonce and dates it anew.
--
-- Of a row that another transaction has in hand ON CONFLICT waits for the end, perhaps of a long one with CompleteTx. So
-- locks are waited for only shortly. To look before inserting would not wait, and cost a claim a fifth more.
--
-- The parameters are those of begin.sql. statement_timestamp() is one reading of the clock for all columns.
INSERT INTO {{schema}}.records
	(scope, key, fingerprint, nonce, state, token, created_at, lease_until, expires_at, bucket)
VALUES ($1::text, $2::text, $3::bytea, $4::bigint, 'processing',
	CASE WHEN set_config('lock_timeout', '10ms', true) <> '' THEN nextval({{tokens}}) END, -- it holds for this transaction
	statement_timestamp(), statement_timestamp() + {{micros "$5"}},
	statement_timestamp() + ($5::bigint + $6::bigint) * interval '1 microsecond',
	{{bucket (print "statement_timestamp() + " (micros "$7"))}})
ON CONFLICT (scope, key) DO NOTHING
RETURNING CASE WHEN clock_timestamp() <= created_at + interval '100 ms' THEN token END
