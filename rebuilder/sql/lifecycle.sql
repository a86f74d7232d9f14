-- insert_request: a projection is declared stale; its state row is there. Waits for no rebuild
INSERT INTO {s}.invalidation (invalidation, scope, projection, generation, reason, note, actor)
SELECT %(id)s, s.scope, s.projection, s.generation, %(reason)s, %(note)s, coalesce(%(actor)s::text, current_user)
FROM {s}.projection_state s WHERE s.scope = %(scope)s AND s.projection = %(projection)s
RETURNING invalidation, projection, generation, reason, note, actor, requested_at, answered_by, answered_at

-- insert_request_once: the same, unless one for that reason is pending
INSERT INTO {s}.invalidation (invalidation, scope, projection, generation, reason, note)
SELECT %(id)s, s.scope, s.projection, s.generation, %(reason)s, %(note)s
FROM {s}.projection_state s
WHERE s.scope = %(scope)s AND s.projection = %(projection)s AND s.generation > 0
  AND NOT EXISTS (SELECT FROM {s}.invalidation i WHERE i.scope = s.scope AND i.projection = s.projection
                  AND i.reason = %(reason)s AND i.answered_by IS NULL)

-- pending_requests: what no rebuild has answered, oldest first
SELECT invalidation, projection, generation, reason, note, actor, requested_at, answered_by, answered_at
FROM {s}.invalidation
WHERE scope = %(scope)s AND (%(projection)s::text IS NULL OR projection = %(projection)s) AND answered_by IS NULL
ORDER BY requested_at, invalidation

-- requests: the last ones, newest first
SELECT invalidation, projection, generation, reason, note, actor, requested_at, answered_by, answered_at
FROM {s}.invalidation
WHERE scope = %(scope)s AND projection = %(projection)s ORDER BY requested_at DESC, invalidation LIMIT %(limit)s

-- request_of_generation: the newest request that a generation answers, or is being made for
SELECT i.invalidation, i.projection, i.generation, i.reason, i.note, i.actor, i.requested_at, i.answered_by,
       i.answered_at
FROM {s}.invalidation i
JOIN {s}.rebuild_ticket t ON t.ticket = i.answered_by OR t.invalidation = i.invalidation
WHERE t.scope = %(scope)s AND t.projection = %(projection)s AND t.generation = %(generation)s
ORDER BY i.requested_at DESC, i.invalidation LIMIT 1

-- answer_requests: with the swap: the requests that were there when the run got its state lock
UPDATE {s}.invalidation SET answered_by = %(ticket)s, answered_at = clock_timestamp()
WHERE invalidation = ANY (%(ids)s) AND answered_by IS NULL

-- link_ticket: the newest request that a run answers
UPDATE {s}.rebuild_ticket SET invalidation = %(invalidation)s WHERE ticket = %(ticket)s

-- complete_recipe: with the swap: what the projection's recipe looked like
UPDATE {s}.projection_state SET recipe = %(recipe)s WHERE scope = %(scope)s AND projection = %(projection)s

-- complete_source: with the swap: which incarnation of the log live was built from
UPDATE {s}.projection_state SET source_generation = %(source)s
WHERE scope = %(scope)s AND projection = %(projection)s

-- read_recipe: what live was built with, and whether the log was rotated since
SELECT s.generation, s.version, s.recipe, g.retired_at IS NOT NULL
FROM {s}.projection_state s LEFT JOIN {s}.source_generation g ON g.generation = s.source_generation
WHERE s.scope = %(scope)s AND s.projection = %(projection)s

-- read_health: the health that requests and tickets make
SELECT health FROM {s}.projection_status WHERE scope = %(scope)s AND projection = %(projection)s

-- read_status: one projection as requests, tickets and checkpoints make it
SELECT projection, generation, version, source_generation, health, active_ticket, checkpoint_position,
       checkpoint_source, checkpoint_events, checkpoint_rows, checkpoint_at, pending_requests
FROM {s}.projection_status WHERE scope = %(scope)s AND projection = %(projection)s

-- write_checkpoint: how far live is; the row was locked before
UPDATE {s}.follower_checkpoint
SET position = %(position)s, generation = %(generation)s, source_generation = %(source)s,
    events_applied = %(events)s, rows = %(rows)s, updated_at = greatest(clock_timestamp(), updated_at)
WHERE scope = %(scope)s AND projection = %(projection)s
RETURNING updated_at

-- adopt_state: a read model that was there before: its first checkpoint says which generation and version it is
UPDATE {s}.projection_state
SET health = 'ready', generation = %(generation)s, next_generation = greatest(next_generation, %(generation)s + 1),
    version = %(version)s, position = %(position)s, source_generation = %(source)s, rebuilt_at = clock_timestamp(),
    updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s

-- promote_state: a rebuild of the store is complete: live is its generation
UPDATE {s}.projection_state
SET health = 'ready', generation = %(generation)s, next_generation = greatest(next_generation, %(generation)s + 1),
    version = %(version)s, position = %(position)s, source_generation = %(source)s, recipe = NULL, fingerprint = NULL,
    rebuilt_at = clock_timestamp(), last_failure = NULL, updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s

-- request_ticket: a rebuild that somebody will start; its generation is the next of its projection
INSERT INTO {s}.rebuild_ticket (ticket, scope, projection, generation, version, stage, reason, host, pid, driver,
                                invalidation, source_generation, source_position, source_events, source_tier,
                                source_digest)
SELECT %(ticket)s, s.scope, s.projection,
       greatest(s.next_generation, (SELECT coalesce(max(t.generation), 0) + 1 FROM {s}.rebuild_ticket t
                                    WHERE t.scope = s.scope AND t.projection = s.projection)),
       %(version)s, 'requested', %(reason)s, %(host)s, %(pid)s, 'store', %(invalidation)s, %(source)s, %(position)s,
       %(events)s, %(tier)s, %(digest)s
FROM {s}.projection_state s WHERE s.scope = %(scope)s AND s.projection = %(projection)s

-- read_ticket: one ticket
SELECT ticket, projection, generation, version, revision, stage, requested_at, updated_at, invalidation,
       source_generation, source_tier, source_events, source_position, source_digest, checkpoint_position,
       checkpoint_events, checkpoint_rows, checkpoint_at, failure_code, driver
FROM {s}.rebuild_ticket WHERE ticket = %(ticket)s AND scope = %(scope)s

-- lock_ticket: the same, for a step of it
SELECT ticket, projection, generation, version, revision, stage, requested_at, updated_at, invalidation,
       source_generation, source_tier, source_events, source_position, source_digest, checkpoint_position,
       checkpoint_events, checkpoint_rows, checkpoint_at, failure_code, driver
FROM {s}.rebuild_ticket WHERE ticket = %(ticket)s AND scope = %(scope)s FOR NO KEY UPDATE

-- open_tickets: rebuilds that are neither finished nor failed, the longest silent first
SELECT ticket, projection, generation, version, revision, stage, requested_at, updated_at, invalidation,
       source_generation, source_tier, source_events, source_position, source_digest, checkpoint_position,
       checkpoint_events, checkpoint_rows, checkpoint_at, failure_code, driver
FROM {s}.rebuild_ticket
WHERE scope = %(scope)s AND stage IN ('requested', 'running')
  AND clock_timestamp() - updated_at >= make_interval(secs => %(silent)s)
ORDER BY updated_at, ticket

-- step_ticket: compare and swap: only whoever has seen this revision makes the step; all of it at one time
UPDATE {s}.rebuild_ticket
SET stage = %(stage)s, revision = revision + 1, updated_at = greatest(statement_timestamp(), updated_at),
    started_at = CASE WHEN %(stage)s = 'running' THEN coalesce(started_at, statement_timestamp()) ELSE started_at END,
    finished_at = CASE WHEN %(stage)s IN ('requested', 'running') THEN NULL ELSE statement_timestamp() END,
    failure_code = %(failure)s, failure = %(details)s, report = %(report)s,
    checkpoint_position = coalesce(%(position)s, checkpoint_position),
    checkpoint_events = coalesce(%(events)s, checkpoint_events),
    checkpoint_rows = CASE WHEN %(events)s::int8 IS NULL THEN checkpoint_rows ELSE %(rows)s END,
    checkpoint_at = CASE WHEN %(events)s::int8 IS NULL THEN checkpoint_at
                         ELSE greatest(statement_timestamp(), updated_at) END
WHERE ticket = %(ticket)s AND revision = %(revision)s
RETURNING revision

-- prove_ticket: which log the rebuild saw, as the fenced log says too
UPDATE {s}.rebuild_ticket
SET source_generation = %(source)s, source_tier = %(tier)s, source_events = %(events)s, source_position = %(position)s,
    source_digest = %(digest)s
WHERE ticket = %(ticket)s

-- answer_older: a rebuild of the store answers the request it names and those that were made before it
UPDATE {s}.invalidation i SET answered_by = %(ticket)s, answered_at = clock_timestamp()
FROM {s}.invalidation named
WHERE named.invalidation = %(invalidation)s AND i.scope = named.scope AND i.projection = named.projection
  AND i.answered_by IS NULL AND i.requested_at <= named.requested_at

-- requested_ticket: what waits to be started
SELECT ticket FROM {s}.rebuild_ticket
WHERE scope = %(scope)s AND projection = %(projection)s AND stage = 'requested'

-- adopt_ticket: a run starts the ticket that waited
WITH ticket AS (
    UPDATE {s}.rebuild_ticket
    SET stage = 'running', driver = 'engine', revision = revision + 1, version = %(version)s, reason = %(reason)s,
        note = coalesce(%(note)s, note), host = %(host)s, pid = %(pid)s, backend_pid = %(backend_pid)s,
        started_at = clock_timestamp(), updated_at = greatest(clock_timestamp(), updated_at)
    WHERE ticket = %(ticket)s AND stage = 'requested' RETURNING ticket, generation
), progress AS (
    INSERT INTO {s}.ticket_progress (ticket, phase) SELECT ticket, 'lock state' FROM ticket ON CONFLICT DO NOTHING
)
SELECT generation FROM ticket

-- active_source: the incarnation of a log
SELECT generation FROM {s}.source_generation WHERE log = %(log)s AND retired_at IS NULL

-- insert_source: the first incarnation, or the next
INSERT INTO {s}.source_generation (log, reason) VALUES (%(log)s, %(reason)s)
ON CONFLICT (log) WHERE retired_at IS NULL DO NOTHING RETURNING generation

-- retire_source: the incarnation ends
UPDATE {s}.source_generation SET retired_at = greatest(clock_timestamp(), created_at)
WHERE log = %(log)s AND retired_at IS NULL RETURNING generation

-- sources: the incarnations of a log, the newest first
SELECT generation, log, reason, created_at, retired_at FROM {s}.source_generation WHERE log = %(log)s
ORDER BY created_at DESC

-- segments: the closed segments of an incarnation
SELECT first_position, last_position, events, digest FROM {s}.log_segment
WHERE source_generation = %(source)s ORDER BY first_position

-- insert_segment: a closed segment, once
INSERT INTO {s}.log_segment (source_generation, first_position, last_position, events, digest)
VALUES (%(source)s, %(first)s, %(last)s, %(events)s, %(digest)s) ON CONFLICT DO NOTHING

-- put_document: one document of a generation; the digest binds it to its place
INSERT INTO {s}.document (scope, projection, generation, key, body, bytes, digest)
SELECT %(scope)s, given.projection, given.generation, given.key, given.body, given.bytes,
       sha256(convert_to(octet_length(projection) || ':' || projection || generation || ':' || octet_length(key)
                         || ':' || key, 'UTF8') || coalesce(bytes, convert_to(body::text, 'UTF8')))
FROM (SELECT %(projection)s::text AS projection, %(generation)s::int8 AS generation, %(key)s::text AS key,
             %(body)s::jsonb AS body, %(bytes)s::bytea AS bytes) AS given
ON CONFLICT (scope, projection, generation, key) DO UPDATE
SET body = excluded.body, bytes = excluded.bytes, digest = excluded.digest, updated_at = clock_timestamp()

-- remove_documents: documents that are not there any more
DELETE FROM {s}.document
WHERE scope = %(scope)s AND projection = %(projection)s AND generation = %(generation)s AND key = ANY (%(keys)s)

-- read_document: of a generation, or of the live one
SELECT generation, key, body::text, bytes, digest FROM {s}.document
WHERE scope = %(scope)s AND projection = %(projection)s AND key = %(key)s
  AND generation = coalesce(%(generation)s::int8, (SELECT s.generation FROM {s}.projection_state s
                                                   WHERE s.scope = %(scope)s AND s.projection = %(projection)s))

-- list_documents: sizes first, so that a value is loaded only after it was charged
SELECT generation, key, coalesce(octet_length(bytes), octet_length(body::text), 0), octet_length(digest)
FROM {s}.document
WHERE scope = %(scope)s AND projection = %(projection)s
  AND (generation, key) > (%(after_generation)s, %(after_key)s::text COLLATE "C")
  AND (%(generation)s::int8 IS NULL OR generation = %(generation)s)
ORDER BY generation, key LIMIT %(limit)s

-- expire_documents: generations before live, but for the last ones
DELETE FROM {s}.document d
WHERE d.scope = %(scope)s AND d.projection = %(projection)s AND d.generation < (
    SELECT s.generation FROM {s}.projection_state s WHERE s.scope = d.scope AND s.projection = d.projection)
  AND d.generation NOT IN (SELECT DISTINCT o.generation FROM {s}.document o, {s}.projection_state s
                           WHERE o.scope = %(scope)s AND o.projection = %(projection)s AND s.scope = o.scope
                             AND s.projection = o.projection AND o.generation < s.generation
                           ORDER BY o.generation DESC LIMIT %(keep)s)
  AND NOT EXISTS (SELECT FROM {s}.rebuild_ticket t
                  WHERE t.scope = d.scope AND t.projection = d.projection AND t.generation = d.generation
                    AND t.stage IN ('requested', 'running'))

-- put_snapshot: once
INSERT INTO {s}.snapshot (scope, projection, snapshot, generation, body, bytes, digest)
SELECT %(scope)s, given.projection, given.snapshot, given.generation, given.body, given.bytes,
       sha256(convert_to(octet_length(projection) || ':' || projection || generation || ':'
                         || octet_length(snapshot::text) || ':' || snapshot::text, 'UTF8')
              || coalesce(bytes, convert_to(body::text, 'UTF8')))
FROM (SELECT %(projection)s::text AS projection, %(generation)s::int8 AS generation, %(snapshot)s::uuid AS snapshot,
             %(body)s::jsonb AS body, %(bytes)s::bytea AS bytes) AS given
ON CONFLICT (scope, projection, snapshot) DO NOTHING

-- read_snapshot: one
SELECT generation, body::text, bytes, digest, created_at FROM {s}.snapshot
WHERE scope = %(scope)s AND projection = %(projection)s AND snapshot = %(snapshot)s

-- expire_snapshots: those of that age
DELETE FROM {s}.snapshot
WHERE scope = %(scope)s AND projection = %(projection)s AND created_at <= clock_timestamp() - %(age)s

-- put_manifest: once
INSERT INTO {s}.event_index_manifest (manifest, source_generation, total_events, target_shard_size, first_position,
                                      last_position)
VALUES (%(manifest)s, %(source)s, %(events)s, %(target)s, %(first)s, %(last)s) ON CONFLICT (manifest) DO NOTHING

-- put_shard: a shard of a manifest
INSERT INTO {s}.event_index_shard (manifest, shard, ordinal, path, events, first_position, last_position,
                                   first_recorded_at, last_recorded_at, digest)
VALUES (%(manifest)s, %(shard)s, %(ordinal)s, %(path)s, %(events)s, %(first)s, %(last)s, %(first_at)s, %(last_at)s,
        %(digest)s)

-- read_manifest: one
SELECT manifest, source_generation, target_shard_size, total_events FROM {s}.event_index_manifest
WHERE manifest = %(manifest)s

-- last_manifest: the newest of an incarnation
SELECT manifest FROM {s}.event_index_manifest WHERE source_generation = %(source)s
ORDER BY last_position DESC, created_at DESC LIMIT 1

-- read_shards: of a manifest
SELECT ordinal, shard, path, events, first_position, last_position, digest, first_recorded_at, last_recorded_at
FROM {s}.event_index_shard WHERE manifest = %(manifest)s ORDER BY ordinal

-- put_index_checkpoint: how far a rebuild has read a shard; never back
INSERT INTO {s}.event_index_checkpoint AS c (ticket, manifest, shard, position, events)
VALUES (%(ticket)s, %(manifest)s, %(shard)s, %(position)s, %(events)s)
ON CONFLICT (ticket, manifest, shard) DO UPDATE
SET position = excluded.position, events = excluded.events, updated_at = clock_timestamp()
WHERE c.position <= excluded.position AND c.events <= excluded.events
RETURNING position

-- read_index_checkpoint: how far a rebuild has read the shards of a manifest
SELECT shard, position, events FROM {s}.event_index_checkpoint
WHERE ticket = %(ticket)s AND manifest = %(manifest)s ORDER BY shard

-- follow_checkpoint: with a batch, in its transaction
UPDATE {s}.follower_checkpoint
SET position = %(position)s, events_applied = events_applied + %(events)s, generation = %(generation)s,
    source_generation = (SELECT s.source_generation FROM {s}.projection_state s
                         WHERE s.scope = %(scope)s AND s.projection = %(projection)s),
    updated_at = clock_timestamp()
WHERE scope = %(scope)s AND projection = %(projection)s
