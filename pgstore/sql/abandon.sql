-- Abandon: frees the key of a claim that was not completed. The row stays until it is cleaned up: a row that is deleted
-- knows no token, and a Begin that was late could then grant an older one.
--
-- $1 scope   $2 key   $3 token
UPDATE {{schema}}.records
SET state = 'free', nonce = 0, lease_until = clock_timestamp(), expires_at = clock_timestamp()
WHERE scope = $1::text AND key = $2::text AND token = $3::bigint AND completed_at IS NULL
