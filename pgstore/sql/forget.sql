-- Forget: frees a key, and erases what was recorded. The row stays as a tombstone, see abandon.sql.
--
-- $1 scope   $2 key
UPDATE {{schema}}.records
SET state = 'free', nonce = 0, lease_until = clock_timestamp(), expires_at = clock_timestamp(),
	completed_at = NULL, status = 0, truncated = false, header = '', body = ''
WHERE scope = $1::text AND key = $2::text AND expires_at > clock_timestamp()
