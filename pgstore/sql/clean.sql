-- Clean: one batch. Of the rows whose bucket has come, it deletes those that have expired and moves the others, which
-- were given a longer life than was expected, to the bucket that is theirs. Rows that somebody else has locked are
-- left alone.
--
-- $1 rows in the batch
WITH due AS MATERIALIZED (
	SELECT ctid AS at, expires_at <= clock_timestamp() - interval '1 minute' AS over
	FROM {{schema}}.records
	-- A subquery, and not clock_timestamp() itself, which would keep the index from being used.
	WHERE bucket <= (SELECT floor(date_part('epoch', clock_timestamp()) / 3600)::int)
	ORDER BY bucket
	LIMIT $1::int
	FOR UPDATE SKIP LOCKED
), deleted AS (
	DELETE FROM {{schema}}.records
	WHERE ctid = ANY (ARRAY(SELECT at FROM due WHERE over))
	RETURNING 1
), moved AS (
	UPDATE {{schema}}.records
	SET bucket = {{bucket "expires_at"}}
	WHERE ctid = ANY (ARRAY(SELECT at FROM due WHERE NOT over))
	RETURNING 1
)
SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM moved)
