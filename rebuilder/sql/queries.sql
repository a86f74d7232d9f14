-- server_identity: what proves that two connections are on the same server, and writable
SELECT pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()), pg_postmaster_start_time(),
       pg_backend_pid(), current_setting('server_version_num')::int, current_database(),
       (SELECT oid FROM pg_database WHERE datname = current_database())::int8,
       current_setting('deadlock_timeout')::interval, current_user

-- changed_settings: which settings a role or a database has changed; NULL where this version has none of that name
SELECT name FROM unnest(%(names)s::text[], %(values)s::text[]) AS pin(name, value)
WHERE current_setting(name, true) <> value AND NOT (name = 'DateStyle' AND current_setting(name) LIKE 'ISO,%%')

-- installed: whether the bookkeeping is there, and at which migration
SELECT to_regclass(%(state)s) IS NOT NULL, to_regclass(%(version)s) IS NOT NULL

-- insert_state: a projection's state row, committed before it is locked, so that a first run can be seen and can fail
INSERT INTO {s}.projection_state (scope, projection) VALUES (%(scope)s, %(projection)s) ON CONFLICT DO NOTHING

-- lock_state: NO KEY UPDATE lets the KEY SHARE of foreign keys through
SELECT generation, next_generation, version, position, health, clock_timestamp()
FROM {s}.projection_state WHERE scope = %(scope)s AND projection = %(projection)s FOR NO KEY UPDATE

-- read_state: the state row, without a lock
SELECT generation, version, position, health, rebuilt_at, last_failure, fingerprint
FROM {s}.projection_state WHERE scope = %(scope)s AND projection = %(projection)s

-- complete_state: the projection is what this run made it
UPDATE {s}.projection_state
SET health = 'ready', generation = %(generation)s, next_generation = greatest(next_generation, %(generation)s + 1),
    version = %(version)s, position = %(position)s, fingerprint = %(fingerprint)s, rebuilt_at = clock_timestamp(),
    last_failure = NULL, updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s

-- fail_state: what the last run failed of; live goes on serving, so the health of a built projection stays
UPDATE {s}.projection_state
SET last_failure = %(failure)s, updated_at = clock_timestamp(),
    health = CASE WHEN generation = 0 AND health = 'never_built' AND NOT %(cancelled)s THEN 'failed' ELSE health END
WHERE scope = %(scope)s AND projection = %(projection)s

-- close_abandoned: tickets still open although the state row is ours: their process is gone
UPDATE {s}.rebuild_ticket
SET stage = 'failed', failure_code = 'abandoned', finished_at = clock_timestamp(), updated_at = clock_timestamp(),
    revision = revision + 1,
    failure = jsonb_build_object('error', 'abandoned', 'message', 'The process ended without closing the ticket.')
WHERE scope = %(scope)s AND projection = %(projection)s AND stage = 'running' AND driver = 'engine'
RETURNING ticket, host, pid, started_at

-- open_ticket: the running ticket of a projection
SELECT t.ticket, t.host, t.pid, t.started_at, p.phase, extract(epoch FROM clock_timestamp() - p.heartbeat_at)::float8
FROM {s}.rebuild_ticket t LEFT JOIN {s}.ticket_progress p USING (ticket)
WHERE t.scope = %(scope)s AND t.projection = %(projection)s AND t.stage = 'running'

-- insert_ticket: one rebuild begins; the generation is the next of its projection
WITH number AS (
    SELECT greatest(
        (SELECT next_generation FROM {s}.projection_state WHERE scope = %(scope)s AND projection = %(projection)s),
        (SELECT coalesce(max(generation), 0) + 1 FROM {s}.rebuild_ticket
         WHERE scope = %(scope)s AND projection = %(projection)s)) AS generation
), ticket AS (
    INSERT INTO {s}.rebuild_ticket (ticket, scope, projection, generation, version, stage, reason, note, host, pid,
                                    backend_pid, started_at)
    SELECT %(ticket)s, %(scope)s, %(projection)s, number.generation, %(version)s, 'running', %(reason)s, %(note)s,
           %(host)s, %(pid)s, %(backend_pid)s, clock_timestamp() FROM number
    RETURNING ticket, generation
), progress AS (
    INSERT INTO {s}.ticket_progress (ticket, phase) SELECT ticket, 'lock state' FROM ticket
)
SELECT generation FROM ticket

-- write_progress: how far the run is; the answer says whether somebody asked for its end
UPDATE {s}.ticket_progress
SET phase = %(phase)s, events_done = %(done)s, events_total = %(total)s, position = %(position)s, rate = %(rate)s,
    eta = %(eta)s, attempts = %(attempts)s, blockers = %(blockers)s, heartbeat_at = clock_timestamp()
WHERE ticket = %(ticket)s
RETURNING cancel_requested_at IS NOT NULL

-- complete_ticket: in the main transaction, with the swap
UPDATE {s}.rebuild_ticket
SET stage = 'completed', report = %(report)s, finished_at = clock_timestamp(), updated_at = clock_timestamp(),
    revision = revision + 1
WHERE ticket = %(ticket)s AND stage = 'running'

-- update_report: times that are known only after the commit
UPDATE {s}.rebuild_ticket SET report = %(report)s, updated_at = clock_timestamp(), revision = revision + 1
WHERE ticket = %(ticket)s AND stage = 'completed'

-- close_ticket: after the rollback, by the second connection
UPDATE {s}.rebuild_ticket
SET stage = %(stage)s, failure_code = %(code)s, failure = %(failure)s, finished_at = clock_timestamp(),
    updated_at = clock_timestamp(), revision = revision + 1
WHERE ticket = %(ticket)s AND stage = 'running'

-- request_cancel: asks a running rebuild to stop
UPDATE {s}.ticket_progress p
SET cancel_requested_at = coalesce(p.cancel_requested_at, clock_timestamp()),
    cancel_requested_by = coalesce(p.cancel_requested_by, current_user)
FROM {s}.rebuild_ticket t
WHERE p.ticket = t.ticket AND t.ticket = %(ticket)s AND t.stage = 'running'
RETURNING t.backend_pid

-- cancel_requested: whether somebody asked for a run's end
SELECT cancel_requested_at IS NOT NULL FROM {s}.ticket_progress WHERE ticket = %(ticket)s

-- tickets: the last rebuilds, newest first
SELECT t.ticket, t.projection, t.generation, t.version, t.stage, t.host, t.pid, t.requested_at, t.updated_at,
       t.started_at, t.finished_at, t.failure_code, t.failure, t.report, t.reason, t.note, t.actor
FROM {s}.rebuild_ticket t
WHERE t.scope = %(scope)s AND (%(projection)s::text IS NULL OR t.projection = %(projection)s)
  AND (%(ticket)s::uuid IS NULL OR t.ticket = %(ticket)s)
ORDER BY t.requested_at DESC, t.generation DESC LIMIT %(limit)s

-- progress: how far a ticket is
SELECT phase, events_done, events_total, rate, eta, attempts,
       extract(epoch FROM clock_timestamp() - heartbeat_at)::float8, blockers, cancel_requested_at IS NOT NULL, position
FROM {s}.ticket_progress WHERE ticket = %(ticket)s

-- known_projections: every projection that has a state
SELECT projection FROM {s}.projection_state WHERE scope = %(scope)s ORDER BY projection

-- record_dead_letter: one record per event, however often a run meets it
INSERT INTO {s}.dead_letter AS d (scope, projection, position, tenant, category, stream, stream_version, type, cause,
                                  policy, error_class, sqlstate, message, traceback, data, ticket)
VALUES (%(scope)s, %(projection)s, %(position)s, %(tenant)s, %(category)s, %(stream)s, %(stream_version)s, %(type)s,
        %(cause)s, %(policy)s, %(error_class)s, %(sqlstate)s, %(message)s, %(traceback)s, %(data)s, %(ticket)s)
ON CONFLICT (scope, projection, tenant, position) WHERE resolved_at IS NULL DO UPDATE
SET cause = excluded.cause, policy = excluded.policy, error_class = excluded.error_class, sqlstate = excluded.sqlstate,
    message = excluded.message, traceback = excluded.traceback, data = coalesce(excluded.data, d.data),
    ticket = excluded.ticket, attempts = d.attempts + CASE WHEN d.ticket = excluded.ticket THEN 0 ELSE 1 END,
    updated_at = clock_timestamp()

-- settle_dead_letters: with the swap: this run's letters are missing in live, older ones were applied by it
UPDATE {s}.dead_letter
SET in_live = ticket = %(ticket)s AND position = ANY (%(positions)s),
    resolved_at = CASE WHEN ticket = %(ticket)s AND position = ANY (%(positions)s) THEN NULL ELSE clock_timestamp() END,
    resolution = CASE WHEN ticket = %(ticket)s AND position = ANY (%(positions)s) THEN NULL ELSE 'rebuilt' END,
    updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s AND resolved_at IS NULL

-- dead_letters: the open ones of a projection, in position order
SELECT id, position, tenant, category, stream, stream_version, type, cause, policy, error_class, sqlstate, message,
       ticket, attempts, in_live, created_at, projection
FROM {s}.dead_letter
WHERE scope = %(scope)s AND (%(projection)s::text IS NULL OR projection = %(projection)s) AND resolved_at IS NULL
ORDER BY projection, position LIMIT %(limit)s

-- dead_letter: one whole
SELECT id, position, tenant, category, stream, stream_version, type, cause, policy, error_class, sqlstate, message,
       ticket, attempts, in_live, created_at, projection, traceback, data, resolved_at, resolution
FROM {s}.dead_letter WHERE scope = %(scope)s AND id = %(id)s

-- count_dead_letters: events missing in live
SELECT count(*) FROM {s}.dead_letter
WHERE scope = %(scope)s AND projection = %(projection)s AND resolved_at IS NULL AND in_live

-- quarantined_streams: which of these streams are set aside
SELECT DISTINCT tenant, category, stream FROM {s}.dead_letter
WHERE scope = %(scope)s AND projection = %(projection)s AND resolved_at IS NULL AND in_live AND policy = 'stream'
  AND stream = ANY (%(streams)s)

-- insert_owed: work for after the commit
INSERT INTO {s}.owed (ticket, kind, label, statement, due_at)
VALUES (%(ticket)s, %(kind)s, %(label)s, %(statement)s, clock_timestamp() + make_interval(secs => %(delay)s))

-- owed: what is left to do, with what was kept on purpose
SELECT o.id, o.kind, o.label, o.statement, o.due_at <= clock_timestamp(), t.projection, o.last_error, o.due_at, o.ticket
FROM {s}.owed o JOIN {s}.rebuild_ticket t USING (ticket)
WHERE o.done_at IS NULL AND t.scope = %(scope)s AND (%(projection)s::text IS NULL OR t.projection = %(projection)s)
ORDER BY o.id

-- owed_done: settled
UPDATE {s}.owed SET done_at = clock_timestamp(), last_error = NULL WHERE id = %(id)s AND done_at IS NULL

-- owed_failed: tried and failed
UPDATE {s}.owed SET last_error = %(error)s WHERE id = %(id)s

-- owed_superseded: retired tables of earlier rebuilds are due once a later one is done
UPDATE {s}.owed o SET due_at = least(o.due_at, clock_timestamp())
FROM {s}.rebuild_ticket t
WHERE o.ticket = t.ticket AND o.done_at IS NULL AND o.kind = 'drop-retired' AND t.scope = %(scope)s
  AND t.projection = %(projection)s AND t.ticket <> %(ticket)s

-- insert_checkpoint: a follower's checkpoint row
INSERT INTO {s}.follower_checkpoint (scope, projection) VALUES (%(scope)s, %(projection)s) ON CONFLICT DO NOTHING

-- lock_checkpoint: first in each attempt, as the follower takes it
SELECT position FROM {s}.follower_checkpoint WHERE scope = %(scope)s AND projection = %(projection)s FOR UPDATE

-- advance_checkpoint: with the swap
UPDATE {s}.follower_checkpoint
SET position = %(position)s, generation = %(generation)s, source_generation = %(source)s,
    events_applied = %(events)s, rows = NULL, updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s

-- read_checkpoint: where a follower is
SELECT position FROM {s}.follower_checkpoint WHERE scope = %(scope)s AND projection = %(projection)s

-- xact_status: what became of a transaction whose COMMIT was not answered
SELECT pg_xact_status(%(xid)s::text::xid8)

-- snapshot_knows: false when the table was put in place after this transaction's snapshot
SELECT EXISTS (SELECT FROM pg_class WHERE oid = to_regclass(%(name)s))

-- outside_locks: locks of our own backend above ACCESS SHARE on tables and sequences that are not the run's own
SELECT c.oid::int8, format('%%I.%%I', n.nspname, c.relname), l.mode
FROM pg_locks l
JOIN pg_class c ON c.oid = l.relation
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted AND l.mode <> 'AccessShareLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND c.relkind IN ('r', 'p', 'S', 'm', 'v', 'f')
  AND n.nspname <> ALL (%(inside)s)
  AND n.nspname NOT IN ('pg_catalog', 'pg_toast', 'information_schema')
  AND n.oid IS DISTINCT FROM nullif(pg_my_temp_schema(), 0)
ORDER BY 2, 3

-- outside_writes: rows of other tables that this transaction wrote
SELECT s.relid::int8, format('%%I.%%I', s.schemaname, s.relname), s.n_tup_ins + s.n_tup_upd + s.n_tup_del
FROM pg_stat_xact_user_tables s
WHERE s.n_tup_ins + s.n_tup_upd + s.n_tup_del > 0 AND s.schemaname <> ALL (%(inside)s)
  AND s.schemaname NOT LIKE 'pg\_temp\_%%' AND s.schemaname NOT LIKE 'pg\_toast%%'
ORDER BY 2

-- versions: rows of the shadow, and versions of rows that the transaction has left behind in it
SELECT coalesce(sum(s.n_tup_ins - s.n_tup_del), 0)::int8, coalesce(sum(s.n_tup_upd + s.n_tup_del), 0)::int8
FROM pg_stat_xact_user_tables s
WHERE s.schemaname = ANY (%(schemas)s)

-- holders: who holds a lock on these relations, and whether they wait for us
SELECT l.relation::int8, l.pid, a.usename, a.application_name, a.state,
       extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::float8,
       left(a.query, 80), a.backend_type, x.gid,
       l.pid IS NOT NULL AND %(main)s = ANY (pg_blocking_pids(l.pid)), string_agg(DISTINCT l.mode, ', ')
FROM pg_locks l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
LEFT JOIN pg_prepared_xacts x ON l.pid IS NULL AND x.transaction IN (
    SELECT t.transactionid FROM pg_locks t
    WHERE t.locktype = 'transactionid' AND t.granted AND t.virtualtransaction = l.virtualtransaction)
WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (%(oids)s::oid[])
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.pid IS DISTINCT FROM %(main)s AND l.pid IS DISTINCT FROM pg_backend_pid()
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
ORDER BY 6 DESC NULLS LAST

-- waiters: who waits for these relations behind us, and since when
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - l.waitstart)::float8
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND NOT l.granted AND l.relation = ANY (%(oids)s::oid[])
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())

-- incomparable_types: which of these types have no equality (json, point, arrays and composites of such)
WITH RECURSIVE part AS (
    SELECT given.name, t.oid, t.typtype, t.typcategory, t.typelem, t.typbasetype
    FROM unnest(%(types)s::text[]) AS given(name) JOIN pg_type t ON t.oid = to_regtype(given.name)
    UNION ALL
    SELECT p.name, t.oid, t.typtype, t.typcategory, t.typelem, t.typbasetype
    FROM part p JOIN pg_type t ON t.oid = CASE WHEN p.typtype = 'd' THEN p.typbasetype
                                               WHEN p.typcategory = 'A' THEN p.typelem END
)
SELECT DISTINCT p.name FROM part p
WHERE p.typtype NOT IN ('d', 'e', 'r', 'm') AND p.typcategory <> 'A'
  AND NOT EXISTS (SELECT FROM pg_opclass o JOIN pg_am a ON a.oid = o.opcmethod
                  WHERE a.amname = 'btree' AND o.opcdefault
                    AND (o.opcintype = p.oid
                         OR o.opcintype IN (SELECT c.casttarget FROM pg_cast c
                                            WHERE c.castsource = p.oid AND c.castmethod = 'b' AND c.castcontext = 'i')))

-- price: who is touched by one long transaction
SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_type = 'logical' AND database = current_database()),
       (SELECT CASE WHEN setting::int8 >= 0 THEN setting::int8 * 1048576 END FROM pg_settings
        WHERE name = 'max_slot_wal_keep_size'),
       (SELECT count(*) FROM pg_stat_replication),
       (SELECT coalesce(max(age(backend_xmin)), 0)::int8 FROM pg_stat_activity WHERE datname = current_database()),
       (SELECT coalesce(array_agg(format('%%I.%%I', a.attrelid::regclass, a.attname)), '{}')
        FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = ANY (%(log)s::oid[]) AND NOT a.attisdropped
          AND pg_get_expr(d.adbin, d.adrelid) ~ 'pg_current_xact_id|txid_current'),
       current_setting('wal_level'), current_setting('synchronous_standby_names'),
       (SELECT coalesce(array_agg(format('pid %%s on %%s', pid, relid::regclass)), '{}')
        FROM pg_stat_progress_create_index WHERE datname = current_database() AND command LIKE '%%CONCURRENTLY'),
       (SELECT coalesce(sum(greatest(c.reltuples, 0)), 0)::int8 FROM pg_class c
        WHERE c.relkind = 'r' AND (c.oid = ANY (%(log)s::oid[]) OR c.oid IN
            (SELECT t.relid FROM unnest(%(log)s::oid[]) AS r(root), pg_partition_tree(r.root) t)))

-- last_pace: events a second of the last completed rebuild
SELECT (report ->> 'events_applied')::float8 / nullif((report -> 'seconds' ->> 'total')::float8, 0)
FROM {s}.rebuild_ticket
WHERE scope = %(scope)s AND projection = %(projection)s AND stage = 'completed'
ORDER BY finished_at DESC LIMIT 1

-- autovacuums: autovacuum workers on these tables, and whether they prevent wraparound
SELECT a.pid, l.relation::regclass::text, a.query LIKE '%%to prevent wraparound%%'
FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'relation' AND l.granted AND l.relation = ANY (%(oids)s::oid[])
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.backend_type = 'autovacuum worker'
GROUP BY 1, 2, 3

-- closed_tables: the tables of the bookkeeping that the role may not read and write
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind = 'r' AND c.relname <> 'alembic_version'
  AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE'))
ORDER BY 1

-- privileges: what the role may do that a rebuild needs
SELECT has_database_privilege(current_database(), 'CREATE'), n.oid IS NOT NULL,
       coalesce(has_schema_privilege(n.oid, 'USAGE'), false),
       NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
                   AND c.relname <> 'alembic_version'
                   AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
                            AND has_table_privilege(c.oid, 'UPDATE'))),
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
FROM (SELECT 1) AS one LEFT JOIN pg_namespace n ON n.nspname = %(schema)s

-- index_resources: what an index build may take, to the end of the transaction
SELECT set_config('maintenance_work_mem',
                  (greatest(pg_size_bytes(current_setting('maintenance_work_mem')), %(memory)s) / 1024) || 'kB', true),
       set_config('max_parallel_maintenance_workers',
                  greatest(current_setting('max_parallel_maintenance_workers')::int, %(workers)s)::text, true)

-- ready_schemas: ready-made schemas that this role may fill and that hold nothing
SELECT n.nspname::text FROM pg_namespace n
WHERE starts_with(n.nspname, %(prefix)s) AND has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE')
  AND NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid)
ORDER BY n.nspname

-- schema_is_empty: whether a schema holds nothing
SELECT NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(name)s)
