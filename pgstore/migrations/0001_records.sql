-- What the first version of the store needs. {{schema}} is the quoted name of the schema.
--
-- One row per scope and key. A key that is not UTF-8, or holds a control character or a backslash, is kept escaped: \\
-- for a backslash, \xHH for any other byte. Columns of a fixed size come first, so that nothing is lost to padding.
CREATE TABLE {{schema}}.records (
	token        bigint      NOT NULL, -- of the claim granted last
	nonce        bigint      NOT NULL, -- of the Begin that was granted it; zero: of none
	created_at   timestamptz NOT NULL, -- when it was granted
	lease_until  timestamptz NOT NULL,
	completed_at timestamptz,          -- null: no response is recorded
	expires_at   timestamptz NOT NULL, -- from here on the key is as good as absent; not indexed, so that updates are HOT
	bucket       int         NOT NULL, -- the hour, counted since 1970, from whose start on cleanup looks at the row
	status       int         NOT NULL DEFAULT 0,
	truncated    boolean     NOT NULL DEFAULT false,
	state        text        NOT NULL CHECK (state IN ('processing', 'completed', 'failed', 'free')),
	scope        text        NOT NULL COLLATE "C",
	key          text        NOT NULL COLLATE "C",
	fingerprint  bytea       NOT NULL,
	header       bytea       NOT NULL DEFAULT '',
	body         bytea       NOT NULL DEFAULT '',
	PRIMARY KEY (scope, key),
	CHECK ((completed_at IS NOT NULL) = (state IN ('completed', 'failed')))
) WITH (
	-- Room on each page for the version of a row that Complete writes beside the one that Begin wrote.
	fillfactor = 70,
	-- Every row dies at least once. Vacuum early and little rather than seldom and much.
	autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_insert_scale_factor = 0.05,
	autovacuum_analyze_threshold = 1000, autovacuum_analyze_scale_factor = 0.05,
	-- To give pages back takes a lock that shuts everybody out, and soon they are needed again. See also below.
	vacuum_truncate = false
);

-- Responses come back byte for byte, and most that are large are compressed already.
ALTER TABLE {{schema}}.records ALTER COLUMN header SET STORAGE EXTERNAL, ALTER COLUMN body SET STORAGE EXTERNAL;

-- Some pages, empty from here on. Statements are planned once and then kept for long. A plan made while the table was
-- a page or two would read all of it rather than the index, and go on to do so while it grew, until statistics are
-- gathered a minute later.
INSERT INTO {{schema}}.records (scope, key, fingerprint, nonce, state, token, created_at, lease_until, expires_at, bucket)
SELECT '', i::text, '', 0, 'free', 0, now(), now(), now(), 0 FROM generate_series(1, 2000) AS i;
DELETE FROM {{schema}}.records;

-- The only thing that cleanup scans. A row's bucket does not change when it is completed.
CREATE INDEX records_bucket ON {{schema}}.records (bucket);

-- Tokens grow for ever, also when rows are deleted.
CREATE SEQUENCE {{schema}}.tokens AS bigint;

-- The table as a person wants to read it: states as they are now, what is over included.
CREATE VIEW {{schema}}.overview AS
SELECT scope, key,
	CASE WHEN expires_at <= clock_timestamp() THEN 'free'
		WHEN state = 'processing' AND lease_until <= clock_timestamp() THEN 'unknown'
		ELSE state END AS state,
	status, token, created_at, lease_until, completed_at, expires_at, truncated,
	octet_length(header) AS header_bytes, octet_length(body) AS body_bytes
FROM {{schema}}.records;

-- Claims a key that is free for a Begin, and returns the token; null when the key is not free. It is a function so that a
-- Begin that only looks, a replay for instance, does not pay for making an insert ready. The number is for what it takes and
-- returns: a later version gets a function beside this one, so that programs old and new can share a schema.
CREATE FUNCTION {{schema}}.claim_1(
	the_scope text, the_key text, the_fingerprint bytea,
	the_nonce bigint, -- of this Begin, for it to know its own claim by when its answer was lost and it is sent again
	lease bigint,     -- in microseconds, as the others are
	hold bigint,      -- how long the outcome is unknown when the lease has run out
	life bigint       -- how long the row may live, for the bucket
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	microsecond CONSTANT interval := '1 microsecond';
	started timestamptz := clock_timestamp();
	granted bigint;
BEGIN
	INSERT INTO {{schema}}.records AS r
		(scope, key, fingerprint, nonce, state, token, created_at, lease_until, expires_at, bucket)
	VALUES (the_scope, the_key, the_fingerprint, the_nonce, 'processing', nextval({{tokens}}), started,
		started + lease * microsecond, started + (lease + hold) * microsecond, {{bucket "started + life * microsecond"}})
	ON CONFLICT (scope, key) DO NOTHING -- to say here what else to do would cost each claim of a new key a fifth more
	RETURNING r.token INTO granted;
	IF granted IS NULL THEN
		started := clock_timestamp(); -- the insert may have waited for who has the row
		UPDATE {{schema}}.records AS r SET
			fingerprint = the_fingerprint, nonce = the_nonce, state = 'processing',
			-- Who has the claim already keeps its token: the answer to an earlier copy may have arrived after all.
			token = CASE WHEN r.nonce = the_nonce THEN r.token ELSE nextval({{tokens}}) END,
			created_at = started, lease_until = started + lease * microsecond,
			expires_at = started + (lease + hold) * microsecond, bucket = {{bucket "started + life * microsecond"}},
			completed_at = NULL, status = 0, truncated = false, header = '', body = ''
		-- Of a row that another transaction is changing, what counts is what that one leaves, and the time as it is then.
		WHERE scope = the_scope AND key = the_key AND (r.expires_at <= clock_timestamp() OR r.nonce = the_nonce)
		RETURNING r.token INTO granted;
	END IF;
	IF granted IS NOT NULL AND clock_timestamp() > started + interval '100 ms' THEN
		-- It had to wait for another transaction.
		started := clock_timestamp();
		UPDATE {{schema}}.records
		SET created_at = started, lease_until = started + lease * microsecond, expires_at = started + (lease + hold) * microsecond
		WHERE scope = the_scope AND key = the_key;
	END IF;
	RETURN granted;
END
$$;
