-- Begin: looks at a key and, when it is free, claims it. The row that is returned has a fingerprint when it is of a record
-- that is there, and only a token when it is of a claim that was granted. It has neither when another caller was
-- quicker: look again.
--
-- $1 scope   $2 key   $3 fingerprint   $4 nonce of this Begin   times in microseconds:
-- $5 lease   $6 how long the outcome is unknown when the lease has run out   $7 how long the row may live
SELECT token, fingerprint, completed_at, state = 'failed', status, truncated, header, body, lease_until,
	-- The clock moves on, but a row that was there was: one that ends with its lease is never unknown.
	least(clock_timestamp(), expires_at - interval '1 microsecond') AS now
FROM {{schema}}.records
WHERE scope = $1::text AND key = $2::text AND expires_at > clock_timestamp() AND nonce <> $4::bigint
UNION ALL
SELECT {{schema}}.claim_1($1::text, $2::text, $3::bytea, $4::bigint, $5::bigint, $6::bigint, $7::bigint),
	NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
-- Once there is a row the rest is not looked for. Were it, it would find the key taken.
LIMIT 1
