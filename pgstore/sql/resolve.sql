-- Resolve: records a response in the owner's stead, under a token of its own, so that the owner's claim is lost.
--
-- $1 scope   $2 key   $3 state: completed or failed   $4 status   $5 truncated   $6 header   $7 body   $8 TTL in
-- microseconds
UPDATE {{schema}}.records
SET token = nextval({{tokens}}), nonce = 0, state = $3::text, status = $4::int, truncated = $5::boolean, header = $6::bytea,
	body = $7::bytea, completed_at = clock_timestamp(), expires_at = clock_timestamp() + {{micros "$8"}}
WHERE scope = $1::text AND key = $2::text AND completed_at IS NULL AND expires_at > clock_timestamp()
