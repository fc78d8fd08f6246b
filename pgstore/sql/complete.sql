-- Complete: records the response of a claim that is the key's current one, which is so in all but rare cases.
--
-- $1 scope   $2 key   $3 token   $4 state: completed or failed   $5 status   $6 truncated   $7 header   $8 body
-- $9 TTL in microseconds
UPDATE {{schema}}.records
SET state = $4::text, status = $5::int, truncated = $6::boolean, header = $7::bytea, body = $8::bytea,
	nonce = 0, -- a copy of its Begin that arrives only now is a duplicate like any other
	completed_at = clock_timestamp(), expires_at = clock_timestamp() + {{micros "$9"}}
WHERE scope = $1::text AND key = $2::text AND token = $3::bigint AND completed_at IS NULL
