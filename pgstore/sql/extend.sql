-- Extend: moves the end of the lease of a claim that is the key's current one and was not completed.
--
-- $1 scope   $2 key   $3 token   times in microseconds: $4 lease   $5 how long the row counts
UPDATE {{schema}}.records
SET state = 'processing', (lease_until, expires_at) = (
	-- One reading, so that a row that is to end with its lease does. The condition makes it one for each row, when it is locked.
	SELECT now + {{micros "$4"}}, now + {{micros "$5"}} FROM clock_timestamp() AS now WHERE records.scope IS NOT NULL)
WHERE scope = $1::text AND key = $2::text AND token = $3::bigint AND completed_at IS NULL
