-- Extend: moves the end of the lease of a claim that is the key's current one and was not completed.
--
-- $1 scope   $2 key   $3 token   times in microseconds: $4 lease   $5 how long the row counts
UPDATE {{schema}}.records
SET state = 'processing', lease_until = clock_timestamp() + {{micros "$4"}},
	expires_at = clock_timestamp() + {{micros "$5"}}
WHERE scope = $1::text AND key = $2::text AND token = $3::bigint AND completed_at IS NULL
