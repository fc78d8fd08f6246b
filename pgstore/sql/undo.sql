-- Undo: frees the key of a claim that nobody heard of, since the replies to its Begin were lost. As abandon.sql, but by the
-- nonce of the Begin.
--
-- $1 scope   $2 key   $3 nonce
UPDATE {{schema}}.records
SET state = 'free', nonce = 0, lease_until = clock_timestamp(), expires_at = clock_timestamp()
WHERE scope = $1::text AND key = $2::text AND nonce = $3::bigint AND completed_at IS NULL
