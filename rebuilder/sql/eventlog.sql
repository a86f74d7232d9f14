-- relation: What a relation's name stands for, by the search path
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%(name)s);

-- relation_names: Names that may have been meant, bare where the search path finds them
SELECT CASE WHEN pg_catalog.pg_table_is_visible(c.oid) THEN c.relname::text
            ELSE n.nspname::text || '.' || c.relname::text END
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND n.nspname NOT LIKE 'pg\_%%';

-- sequence_named: A sequence by its name
SELECT c.oid FROM pg_catalog.pg_class c WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'S';

-- column_names: A relation's columns in order
SELECT attname::text, attnotnull, has_column_privilege(attrelid, attnum, 'SELECT')
FROM pg_catalog.pg_attribute
WHERE attrelid = %(oid)s::int8::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum;

-- base_tables: What a relation reads: itself, or through views all that they read
WITH RECURSIVE reached(oid) AS (
    SELECT %(oid)s::int8::oid
    UNION
    SELECT d.refobjid
    FROM reached r
    JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.oid AND w.ev_type = '1'
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND d.objid = w.oid
                               AND d.refclassid = 'pg_catalog.pg_class'::regclass
)
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text
FROM reached r JOIN pg_catalog.pg_class c ON c.oid = r.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind NOT IN ('v', 'S', 'c') ORDER BY c.oid;

-- tables_below: Tables and all their partitions, as they are now
WITH RECURSIVE tree(oid) AS (
    SELECT unnest(%(roots)s::int8[])::oid
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
)
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relispartition,
       pg_catalog.pg_stat_get_tuples_updated(c.oid), pg_catalog.pg_stat_get_tuples_deleted(c.oid),
       pg_catalog.row_security_active(c.oid)
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY 2, 3;

-- simple_view_column: Whether a view is simple (one table, no grouping) and shows a column of it as it is
SELECT pg_catalog.pg_column_is_updatable(a.attrelid, a.attnum, false)
FROM pg_catalog.pg_attribute a WHERE a.attrelid = %(oid)s::int8::oid AND a.attname = %(column)s;

-- column_in_plan: The column of a table that a plan's output is, as EXPLAIN writes it (alias.column, quoted)
SELECT attname::text FROM pg_catalog.pg_attribute
WHERE attrelid = %(oid)s::int8::oid AND attnum > 0 AND NOT attisdropped
  AND right(%(output)s, length(quote_ident(attname)) + 1) = '.' || quote_ident(attname);

-- indexes: Valid indexes of a table with their key columns (NULL for an expression)
SELECT c.relname::text, i.indisunique, i.indpred IS NOT NULL, m.amname::text,
       ARRAY(SELECT a.attname::text
             FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid JOIN pg_catalog.pg_am m ON m.oid = c.relam
WHERE i.indrelid = %(oid)s::int8::oid AND i.indisvalid AND i.indisready ORDER BY c.relname;

-- column_sequences: Sequences that a column draws from, in a table and its partitions: by default, identity, ownership
WITH RECURSIVE tree(oid) AS (
    SELECT %(oid)s::int8::oid
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
), place AS (
    SELECT a.attrelid, a.attnum FROM tree t JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid
    WHERE a.attname = %(column)s AND NOT a.attisdropped
), drawn AS (
    SELECT d.refobjid AS oid, 1 AS rank
    FROM place p JOIN pg_catalog.pg_attrdef f ON f.adrelid = p.attrelid AND f.adnum = p.attnum
    JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = f.oid
                               AND d.refclassid = 'pg_catalog.pg_class'::regclass
    UNION
    SELECT d.objid, CASE d.deptype WHEN 'i' THEN 1 ELSE 2 END
    FROM place p JOIN pg_catalog.pg_depend d
      ON d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = p.attrelid AND d.refobjsubid = p.attnum
     AND d.classid = 'pg_catalog.pg_class'::regclass AND d.deptype IN ('i', 'a')
)
SELECT d.oid, min(d.rank) FROM drawn d JOIN pg_catalog.pg_class c ON c.oid = d.oid AND c.relkind = 'S'
GROUP BY d.oid ORDER BY 2, 1;

-- sequence_columns: Columns of these tables that draw from a sequence: by default, identity, ownership
SELECT f.adrelid, a.attname::text
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_attrdef f ON f.oid = d.objid
JOIN pg_catalog.pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
WHERE d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.refclassid = 'pg_catalog.pg_class'::regclass
  AND d.refobjid = %(sequence)s::int8::oid AND f.adrelid = ANY (%(tables)s::int8[])
UNION
SELECT d.refobjid, a.attname::text
FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = %(sequence)s::int8::oid AND d.deptype IN ('i', 'a')
  AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = ANY (%(tables)s::int8[]);

-- sequence: A sequence's properties, whether this role may read it, and the last value it gave (NULL: none yet)
SELECT n.nspname::text, c.relname::text, s.seqincrement, s.seqcache, s.seqcycle, p.readable,
       -- The function locks the sequence to the end of the transaction, as a drawing appender does, even where a
       -- savepoint is rolled back: another run's horizon would wait for ours. So only where the statement stands alone.
       CASE WHEN p.readable AND %(alone)s THEN pg_catalog.pg_sequence_last_value(c.oid) END
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_sequence s ON s.seqrelid = c.oid
CROSS JOIN LATERAL (SELECT has_sequence_privilege(c.oid, CASE WHEN %(alone)s THEN 'USAGE, SELECT' ELSE 'SELECT' END))
    p(readable)
WHERE c.oid = %(sequence)s::int8::oid;

-- appenders: Virtual transactions of others that may append: they hold a writer's lock on the log or on its sequence
WITH RECURSIVE tree(oid) AS (
    SELECT unnest(%(roots)s::int8[])::oid
    UNION
    SELECT i.inhrelid FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
)
SELECT DISTINCT l.virtualtransaction
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
  -- databases made from one template share OIDs
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND (l.relation IN (SELECT t.oid FROM tree t) OR l.relation = %(sequence)s::int8::oid)
  -- a prepared transaction has no pid
  AND (l.pid IS NULL OR l.pid <> ALL (%(own)s::int4[]));

-- standing: How many of these virtual transactions have not ended; a prepared one shows in other lock types only
SELECT count(DISTINCT l.virtualtransaction)
FROM pg_catalog.pg_locks l WHERE l.virtualtransaction = ANY (%(pending)s::text[]);

-- blockers: Who these virtual transactions are, the oldest first
SELECT l.pid, coalesce(a.usename::text, p.owner::text), a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8 AS age,
       left(a.query, 80), coalesce(a.query = '<insufficient privilege>', false), p.gid,
       coalesce(pg_catalog.pg_blocking_pids(l.pid) && %(own)s::int4[], false)
FROM (SELECT virtualtransaction, max(pid) AS pid,
             array_agg(transactionid) FILTER (WHERE locktype = 'transactionid' AND granted) AS xids
      FROM pg_catalog.pg_locks WHERE virtualtransaction = ANY (%(pending)s::text[]) GROUP BY virtualtransaction) l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_catalog.pg_prepared_xacts p ON l.pid IS NULL AND p.transaction = ANY (l.xids)
ORDER BY age DESC NULLS LAST;

-- forget_statistics: Look at the statistics anew, also inside a transaction
SELECT pg_catalog.pg_stat_clear_snapshot();

-- reading: Settings for the statements over the events, undone with the savepoint that they are read in
SELECT
    -- A page walks the index in order. Where estimates are low (types and categories depend on each other) the planner
    -- would rather sort all that is left of the log, for each page anew.
    set_config('enable_sort', 'off', true),
    -- Compiling costs more than a page.
    set_config('jit', 'off', true),
    -- Row security that comes to the log during a run is an error then, not a silent loss.
    set_config('row_security', 'off', true);
