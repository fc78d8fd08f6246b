-- Lookup: the live record of a key. Also what a claim that is not current is told by. The first columns are those of
-- begin.sql.
--
-- $1 scope   $2 key
SELECT token, fingerprint, completed_at, state = 'failed', status, truncated, header, body, lease_until, now, created_at, expires_at
FROM {{schema}}.records, clock_timestamp() AS now
WHERE scope = $1::text AND key = $2::text AND expires_at > now
