-- Look: the live record of a key, unless it is the claim of this very Begin. What it returns is what begin.sql does.
--
-- $1 scope   $2 key   $3 nonce of this Begin
SELECT token, fingerprint, completed_at, state = 'failed', status, truncated, header, body, lease_until,
	-- The clock moves on, but a row that was there was: one that ends with its lease is never unknown.
	least(clock_timestamp(), expires_at - interval '1 microsecond') AS now
FROM {{schema}}.records
WHERE scope = $1::text AND key = $2::text AND expires_at > clock_timestamp() AND nonce <> $3::bigint
