-- Complete or Extend of a claim whose record is gone: makes it again, unless somebody else holds the key.
--
-- $1 scope   $2 key   $3 token   $4 state   $5 status   $6 truncated   $7 header   $8 body   times in microseconds:
-- $9 lease; zero unless processing   $10 how long the row counts   $11 how long it may live   $12 fingerprint
INSERT INTO {{schema}}.records AS r
	(scope, key, token, state, status, truncated, header, body, nonce, fingerprint, created_at, lease_until, completed_at, expires_at, bucket)
SELECT $1::text, $2::text, $3::bigint, $4::text, $5::int, $6::boolean, $7::bytea, $8::bytea, 0, $12::bytea, now,
	now + {{micros "$9"}},
	CASE WHEN $4::text <> 'processing' THEN now END,
	now + {{micros "$10"}},
	{{bucket (print "now + " (micros "$11"))}}
FROM clock_timestamp() AS now
ON CONFLICT (scope, key) DO UPDATE SET
	token = excluded.token, state = excluded.state, status = excluded.status, truncated = excluded.truncated,
	header = excluded.header, body = excluded.body, nonce = 0, fingerprint = excluded.fingerprint,
	created_at = clock_timestamp(),
	completed_at = CASE WHEN $4::text <> 'processing' THEN clock_timestamp() END,
	(lease_until, expires_at) = (
		SELECT now + {{micros "$9"}}, now + {{micros "$10"}} FROM clock_timestamp() AS now WHERE r.scope IS NOT NULL),
	bucket = excluded.bucket
WHERE r.expires_at <= clock_timestamp()
