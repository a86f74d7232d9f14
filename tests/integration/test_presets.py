"""Each preset opens the table that its store creates, and reads what the store wrote."""

import json
import zlib
from datetime import UTC, datetime

import pytest

from rebuilder.errors import RefusedError
from rebuilder.eventlog import Selection, presets


@pytest.fixture
def db(connect, bare_dsn):
    return connect(bare_dsn, autocommit=True)


def events(log, db, *types, categories=()):
    opened = log.open(db)
    rows = opened.page(db, Selection(types, categories), after=None, upto=None, limit=100)
    assert opened.horizon(db, own_pids=()).settled(db)
    assert opened.read_plan(db, Selection(types, categories)).index_scan
    return [opened.decode(raw, replaying=True) for raw in rows]


MARTEN = """
CREATE SEQUENCE mt_events_sequence;
CREATE TABLE mt_streams (id uuid PRIMARY KEY, type varchar, version bigint,
    timestamp timestamptz DEFAULT now() NOT NULL, created timestamptz DEFAULT now() NOT NULL,
    tenant_id varchar DEFAULT '*DEFAULT*', is_archived bool DEFAULT FALSE);
CREATE TABLE mt_events (seq_id bigint NOT NULL, id uuid NOT NULL,
    stream_id uuid REFERENCES mt_streams ON DELETE CASCADE, version bigint NOT NULL, data jsonb NOT NULL, {binary}
    type varchar(500) NOT NULL,
    timestamp timestamptz DEFAULT now() NOT NULL, tenant_id varchar DEFAULT '*DEFAULT*', mt_dotnet_type varchar,
    headers jsonb, is_skipped bool DEFAULT FALSE, is_archived bool DEFAULT FALSE,
    CONSTRAINT pkey_mt_events_seq_id PRIMARY KEY (seq_id));
CREATE UNIQUE INDEX pk_mt_events_stream_and_version ON mt_events (stream_id, version);
ALTER SEQUENCE mt_events_sequence OWNED BY mt_events.seq_id;
INSERT INTO mt_streams (id, type) VALUES ('00000000-0000-0000-0000-00000000000a', 'account');
"""
MARTEN_APPEND = """INSERT INTO mt_events (seq_id, id, stream_id, version, data, type, headers, is_skipped, is_archived)
    VALUES (nextval('mt_events_sequence'), gen_random_uuid(), '00000000-0000-0000-0000-00000000000a', %s, %s,
            'account_opened', '{"by": "x"}', %s, %s)"""


def test_marten(db):
    db.execute(MARTEN.replace("{binary}", ""))
    for version, skipped, archived in ((1, False, False), (2, True, False), (3, False, True), (4, False, False)):
        db.execute(MARTEN_APPEND, [version, json.dumps({"n": version}), skipped, archived])
    found = events(presets.marten(skipped=True, headers=True), db, "account_opened")
    assert [(e.position, e.stream_version, e.data, e.metadata) for e in found] == [
        (1, 1, {"n": 1}, {"by": "x"}), (4, 4, {"n": 4}, {"by": "x"})]
    assert found[0].stream == "00000000-0000-0000-0000-00000000000a"
    assert (found[0].tenant, found[0].category) == ("*DEFAULT*", None)
    assert [e.position for e in events(presets.marten(), db, "account_opened")] == [1, 2, 4]


def test_marten_with_binary_events(db):
    db.execute(MARTEN.replace("{binary}", "bdata bytea,"))
    db.execute(MARTEN_APPEND, [1, '{"n": 1}', False, False])
    db.execute(MARTEN_APPEND, [2, "{}", False, False])
    db.execute("UPDATE mt_events SET bdata = '\\x0102' WHERE version = 2")
    log = presets.marten(binary=True, decode=lambda data: json.loads(data) if data[:1] == b"{" else list(data))
    assert [e.data for e in events(log, db, "account_opened")] == [{"n": 1}, [1, 2]]


def test_marten_with_events_partitioned_by_tenant_is_refused(db):
    db.execute(MARTEN.replace("{binary}", "").replace("PRIMARY KEY (seq_id)", "PRIMARY KEY (seq_id, tenant_id)"))
    db.execute("CREATE SEQUENCE mt_events_sequence_blue")
    db.execute(MARTEN_APPEND.replace("mt_events_sequence", "mt_events_sequence_blue"), [1, "{}", False, False])
    with pytest.raises(RefusedError, match="has given 0 only"):
        presets.marten().open(db)


def test_eventsourcing(db):
    db.execute("""CREATE TABLE stored_events (originator_id uuid NOT NULL, originator_version bigint NOT NULL,
        topic text, state bytea, notification_id bigserial, PRIMARY KEY (originator_id, originator_version));
        CREATE UNIQUE INDEX stored_events_notification_id_idx ON stored_events (notification_id ASC)""")
    body = zlib.compress(b'{"amount": 5}')
    db.execute("INSERT INTO stored_events VALUES (gen_random_uuid(), 1, 'bank:Opened', %s)", [body])
    log = presets.eventsourcing(decode=lambda data: json.loads(zlib.decompress(data)))
    (event,) = events(log, db, "bank:Opened")
    assert (event.position, event.stream_version, event.data) == (1, 1, {"amount": 5})


def test_message_db(db):
    db.execute("""CREATE SCHEMA message_store;
        CREATE FUNCTION message_store.category(stream_name varchar) RETURNS varchar AS $$
        BEGIN RETURN SPLIT_PART(category.stream_name, '-', 1); END; $$ LANGUAGE plpgsql IMMUTABLE;
        CREATE TABLE message_store.messages (global_position bigserial NOT NULL, position bigint NOT NULL,
            time timestamp DEFAULT (now() AT TIME ZONE 'utc') NOT NULL, stream_name text NOT NULL, type text NOT NULL,
            data jsonb, metadata jsonb, id uuid NOT NULL DEFAULT gen_random_uuid());
        ALTER TABLE message_store.messages ADD PRIMARY KEY (global_position) NOT DEFERRABLE INITIALLY IMMEDIATE;
        CREATE UNIQUE INDEX messages_stream ON message_store.messages (stream_name, position);
        CREATE INDEX messages_category ON message_store.messages (message_store.category(stream_name), global_position,
            message_store.category(metadata->>'correlationStreamName'));
        INSERT INTO message_store.messages (position, stream_name, type, data, time)
        VALUES (0, 'account-1-x', 'Opened', '{"n": 1}', '2024-05-06 07:08'), (0, 'card-9', 'Opened', NULL, now())""")
    (event,) = events(presets.message_db(), db, "Opened", categories=("account",))
    assert (event.stream, event.category, event.stream_version, event.data, event.metadata) == (
        "account-1-x", "account", 0, {"n": 1}, None)
    assert event.recorded_at == datetime(2024, 5, 6, 7, 8, tzinfo=UTC)
    assert [e.data for e in events(presets.message_db(), db, "Opened")] == [{"n": 1}, None]


def test_akka(db):
    db.execute("""CREATE TABLE event_journal (ordering bigserial, persistence_id varchar(255) NOT NULL,
        sequence_number bigint NOT NULL, deleted boolean DEFAULT FALSE NOT NULL, writer varchar(255) NOT NULL,
        write_timestamp bigint, adapter_manifest varchar(255), event_ser_id integer NOT NULL,
        event_ser_manifest varchar(255) NOT NULL, event_payload bytea NOT NULL, meta_ser_id integer,
        meta_ser_manifest varchar(255), meta_payload bytea, PRIMARY KEY (persistence_id, sequence_number));
        CREATE UNIQUE INDEX event_journal_ordering_idx ON event_journal (ordering);
        INSERT INTO event_journal (persistence_id, sequence_number, deleted, writer, write_timestamp, event_ser_id,
            event_ser_manifest, event_payload)
        VALUES ('Account|7', 1, true, 'w', 0, 33, 'Opened', '{}'),
               ('Account|7', 2, false, 'w', 1714979280123, 33, 'Opened', '{"n": 2}')""")
    (event,) = events(presets.akka(), db, "Opened", categories=("Account",))
    assert (event.position, event.stream, event.category, event.stream_version, event.data) == (
        2, "Account|7", "Account", 2, {"n": 2})
    assert event.recorded_at == datetime(2024, 5, 6, 7, 8, 0, 123000, tzinfo=UTC)


def test_axon(db):
    db.execute("""CREATE TABLE DomainEventEntry (globalIndex bigserial NOT NULL,
        aggregateIdentifier varchar(255) NOT NULL, sequenceNumber bigint NOT NULL, type varchar(255),
        eventIdentifier varchar(255) NOT NULL,
        metaData bytea,
        payload bytea NOT NULL, payloadRevision varchar(255), payloadType varchar(255) NOT NULL,
        timeStamp varchar(255) NOT NULL, PRIMARY KEY (globalIndex), UNIQUE (aggregateIdentifier, sequenceNumber),
        UNIQUE (eventIdentifier));
        INSERT INTO DomainEventEntry (aggregateIdentifier, sequenceNumber, type, eventIdentifier, metaData, payload,
            payloadType, timeStamp)
        VALUES ('a1', 0, 'Account', 'e1', '{"user": "x"}', '{"n": 1}', 'bank.Opened', '2024-05-06T07:08:00.123Z')""")
    (event,) = events(presets.axon(), db, "bank.Opened", categories=("Account",))
    assert (event.stream, event.category, event.stream_version) == ("a1", "Account", 0)
    assert (event.data, event.metadata) == ({"n": 1}, {"user": "x"})
    assert event.recorded_at == datetime(2024, 5, 6, 7, 8, 0, 123000, tzinfo=UTC)


def test_kumiko(db):
    db.execute("""CREATE TABLE kumiko_events (id bigserial PRIMARY KEY, aggregate_id uuid NOT NULL,
        aggregate_type text NOT NULL, tenant_id uuid NOT NULL, version integer NOT NULL, type text NOT NULL,
        event_version integer NOT NULL DEFAULT 1, payload jsonb NOT NULL, metadata jsonb NOT NULL,
        created_at timestamptz(3) NOT NULL DEFAULT now(), created_by text NOT NULL,
        UNIQUE (tenant_id, aggregate_id, version));
        CREATE TABLE kumiko_archived_streams (tenant_id uuid, aggregate_id uuid,
            PRIMARY KEY (tenant_id, aggregate_id));
        INSERT INTO kumiko_events (aggregate_id, aggregate_type, tenant_id, version, type, payload, metadata,
            created_by)
        SELECT ('00000000-0000-0000-0000-00000000000' || a)::uuid, 'account',
               ('10000000-0000-0000-0000-00000000000' || t)::uuid, 1, 'opened', '{}', '{}', 'x'
        FROM generate_series(1, 2) a, generate_series(1, 2) t;
        INSERT INTO kumiko_archived_streams
        VALUES ('10000000-0000-0000-0000-000000000002', '00000000-0000-0000-0000-000000000001')""")
    found = events(presets.kumiko(), db, "opened", categories=("account",))
    assert [(e.tenant[-1], e.stream[-1]) for e in found] == [("1", "1"), ("1", "2"), ("2", "2")]
    assert found[0].schema_version == 1
