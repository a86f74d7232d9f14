"""A log is opened only if it can be read completely, and is then read once each, in order, with its values kept."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from rebuilder.errors import LogChanged, LogDefinitionError, MissingPrivilege, RefusedError
from rebuilder.eventlog import Columns, DecodeError, Expression, Selection, TableLog
from tests.fix_threads import wait_until

COLUMNS = Columns(position="id", stream="stream", category="category", stream_version="version", type="type",
                  data="data")
LOG = TableLog("events", columns=COLUMNS)
ALL = Selection(("opened", "moved"))
TABLE = """CREATE TABLE events (id bigserial PRIMARY KEY, stream text NOT NULL,
    category text NOT NULL DEFAULT 'account', version int NOT NULL DEFAULT 1,
    type text NOT NULL DEFAULT 'opened', data jsonb NOT NULL DEFAULT '{}')"""
FOREIGN = "CREATE EXTENSION postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw"
FILL = """INSERT INTO events (stream, type) SELECT 's' || n % 7, CASE n % 3 WHEN 0 THEN 'moved' ELSE 'opened' END
          FROM generate_series(1, {}) n"""


@pytest.fixture
def db(connect, bare_dsn):
    connection = connect(bare_dsn, autocommit=True)
    connection.execute(TABLE)
    return connection


def fill(db, count):
    db.execute(FILL.format(count))


def walk(log, connection, selection=ALL, *, limit=1000, upto=None):
    """All events, page by page."""
    found, after = [], None
    while page := log.page(connection, selection, after=after, upto=upto, limit=limit):
        found += page
        after = page[-1].key
    return found


def positions(rows):
    return [raw.position for raw in rows]


def counted(connection):
    """The statements that a connection runs from now on."""
    seen = []

    class Counting(psycopg.Cursor):
        def execute(self, query, *args, **kwargs):
            seen.append(query.as_string(connection) if isinstance(query, sql.Composable) else query)
            return super().execute(query, *args, **kwargs)

    connection.cursor_factory = Counting
    return seen


def share(db, role, *tables):
    for table in tables:
        db.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(sql.SQL(table), sql.Identifier(role.name)))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_pages_give_each_event_once_in_order(db):
    fill(db, 100)
    log = LOG.open(db)
    assert positions(walk(log, db, limit=7)) == list(range(1, 101))
    assert positions(walk(log, db, limit=7, upto=50)) == list(range(1, 51))
    assert positions(log.tail(db, ALL, above=97)) == [98, 99, 100]
    assert positions(log.tail(db, ALL, above=90, limit=2)) == [91, 92]
    assert log.keys(db, ALL, above=98) == {(99,), (100,)}
    assert (log.count(db, ALL), log.count(db, ALL, above=10, upto=20)) == (100, 10)
    assert log.totals(db, Selection(("moved",))) == (33, 99, 100)


def test_a_page_of_one_passes_a_stream_that_was_deleted(db):
    fill(db, 9)
    db.execute("DELETE FROM events WHERE id IN (4, 5, 6)")
    assert positions(walk(LOG.open(db), db, limit=1)) == [1, 2, 3, 7, 8, 9]


def test_a_log_that_begins_at_thirty_million_takes_no_more_statements(db):
    fill(db, 3)
    log, seen = LOG.open(db), counted(db)
    walk(log, db)
    usual = len(seen)
    db.execute("TRUNCATE events")
    db.execute("SELECT setval('events_id_seq', 30000000)")
    fill(db, 3)
    seen.clear()
    assert positions(walk(log, db)) == [30_000_001, 30_000_002, 30_000_003]
    assert len(seen) == usual


def test_an_empty_log_and_one_with_other_events_only(db):
    log = LOG.open(db)
    for _ in range(2):
        assert walk(log, db) == []
        assert log.tail(db, ALL, above=0) == []
        assert log.count(db, ALL) == 0
        assert log.keys(db, ALL, above=0) == set()
        assert log.horizon(db, own_pids=()).settled(db)
        db.execute("INSERT INTO events (stream, type) VALUES ('a', 'other')")
    assert log.totals(db, ALL) == (0, 0, 2)
    db.execute("TRUNCATE events")
    assert log.totals(db, ALL) == (0, 0, 0)


def test_a_projection_that_subscribes_to_nothing_reads_nothing(db):
    fill(db, 5)
    log, nothing = LOG.open(db), Selection(())
    assert walk(log, db, nothing) == []
    assert (log.count(db, nothing), log.keys(db, nothing, above=0)) == (0, set())
    assert log.totals(db, nothing) == (0, 0, 5)
    assert log.read_plan(db, nothing).share == 0.0


def test_categories_and_types_select(db):
    db.execute("INSERT INTO events (stream, category, type) VALUES ('a', 'account', 'opened'), ('b', 'card', 'opened'),"
               " ('c', 'card', 'moved'), ('d', 'loan', 'moved'), ('e', 'o''brien %s {}', '100 %')")
    log = LOG.open(db)
    assert positions(walk(log, db, Selection(("opened",), ("card",)))) == [2]
    assert positions(walk(log, db, Selection(("opened", "moved"), ("card", "loan")))) == [2, 3, 4]
    assert positions(walk(log, db, Selection(("100 %",), ("o'brien %s {}",)))) == [5]
    without = TableLog("events", columns=replace(COLUMNS, category=None)).open(db)
    with pytest.raises(LogDefinitionError, match="no category column"):
        without.page(db, Selection(("opened",), ("card",)), after=None, upto=None, limit=1)


def test_an_event_has_all_that_its_columns_say(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE TYPE kind AS ENUM ('opened', 'moved')")
    db.execute("""CREATE TABLE events (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate uuid, tenant int,
        v int, kind kind, schema smallint, body json, meta jsonb, at timestamptz)""")
    db.execute("""INSERT INTO events (aggregate, tenant, v, kind, schema, body, meta, at) VALUES
        ('6b1d0bd4-4a0e-4b0f-9d52-3a7f0f1c2d3e', 7, 3, 'moved', 2, '{"a": [1, null]}', '{"by": "x"}',
         '2024-05-06 07:08Z')""")
    log = TableLog("events", columns=Columns(
        position="id", stream="aggregate", type="kind", data="body", tenant="tenant", stream_version="v",
        schema_version="schema", metadata="meta", recorded_at="at", category=Expression("'account'"))).open(db)
    event = log.decode(walk(log, db, Selection(("moved",), ("account",)))[0], replaying=True)
    assert (event.position, event.stream, event.tenant, event.category) == (
        1, "6b1d0bd4-4a0e-4b0f-9d52-3a7f0f1c2d3e", "7", "account")
    assert (event.type, event.stream_version, event.schema_version, event.replaying) == ("moved", 3, 2, True)
    assert (event.data, event.metadata) == ({"a": [1, None]}, {"by": "x"})
    assert event.recorded_at == datetime(2024, 5, 6, 7, 8, tzinfo=UTC)


@pytest.mark.parametrize("kind", ["jsonb", "json", "text", "varchar", "bytea"])
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_payloads_of_any_kind_are_read_whatever_the_client_encoding(connect, bare_dsn, kind, encoding):
    db = connect(bare_dsn, autocommit=True, client_encoding=encoding)
    db.execute(sql.SQL("CREATE TABLE events (id serial PRIMARY KEY, stream text, type text, data {}, meta {})").format(
        sql.SQL(kind), sql.SQL(kind)))
    body = '{"owner": "Zoë"}'
    db.execute("INSERT INTO events (stream, type, data) VALUES ('Zoë', 'opened', %s)",
               [body.encode() if kind == "bytea" else body])
    log = TableLog("events", columns=Columns(position="id", stream="stream", type="type", data="data",
                                             metadata="meta")).open(db)
    event = log.decode(walk(log, db)[0], replaying=True)
    assert (event.stream, event.data, event.metadata) == ("Zoë", {"owner": "Zoë"}, None)


def test_numbers_keep_their_value(db):
    exact = "0.1234567890123456789012"
    db.execute("INSERT INTO events (stream, data) VALUES ('a', %s)",
               [f'{{"big": {10**29}, "min": -9223372036854775809, "amount": 1.10, "long": {exact}}}'])
    plain = LOG.open(db)
    data = plain.decode(walk(plain, db)[0], replaying=True).data
    assert (data["big"], data["min"]) == (10**29, -9223372036854775809)
    assert (data["amount"], type(data["amount"])) == (1.1, float)
    decimals = replace(LOG, decode="json-decimal").open(db)
    data = decimals.decode(walk(decimals, db)[0], replaying=True).data
    assert (data["big"], str(data["amount"]), data["long"]) == (10**29, "1.10", Decimal(exact))


def test_a_string_in_a_json_column_stays_a_string(db):
    db.execute("""INSERT INTO events (stream, data) VALUES ('a', '"{\\"n\\": 1}"')""")
    log = LOG.open(db)
    assert log.decode(walk(log, db)[0], replaying=True).data == '{"n": 1}'


def test_an_event_that_cannot_be_decoded_is_named_without_its_data(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE TABLE events (id serial PRIMARY KEY, stream text, type text, data text)")
    db.execute("INSERT INTO events (stream, type, data) VALUES ('acct-1', 'opened', '{\"secret\": broken}'),"
               " ('acct-1', 'opened', repeat('[', 20000)), (NULL, 'opened', '{}')")
    definition = TableLog("events", columns=Columns(position="id", stream="stream", type="type", data="data"))
    log = definition.open(db)
    malformed, deep, homeless = walk(log, db)
    with pytest.raises(DecodeError) as caught:
        log.decode(malformed, replaying=True)
    assert (caught.value.position, caught.value.type, caught.value.stream) == (1, "opened", "acct-1")
    assert "position 1 (opened, stream acct-1)" in str(caught.value)
    assert "secret" not in str(caught.value)
    with pytest.raises(DecodeError, match="nested too deeply"):
        log.decode(deep, replaying=True)
    with pytest.raises(DecodeError, match="no stream"):
        log.decode(homeless, replaying=True)

    def own(payload: bytes) -> dict:
        raise KeyError(payload)

    with pytest.raises(DecodeError, match="the decoder raised KeyError") as caught:
        replace(definition, decode=own).open(db).decode(malformed, replaying=True)
    assert "secret" not in str(caught.value)


def test_a_value_that_no_column_should_hold_is_an_error_that_names_the_log(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE TABLE events (id serial PRIMARY KEY, stream text, type text, data jsonb, at timestamptz)")
    db.execute("INSERT INTO events (stream, type, data, at) VALUES ('a', 'opened', '{}', 'infinity')")
    columns = Columns(position="id", stream="stream", type="type", data="data", recorded_at="at")
    with pytest.raises(LogDefinitionError, match=r"public\.events can't be read") as caught:
        walk(TableLog("events", columns=columns).open(db), db)
    assert "mend the expression or the row" in caught.value.hint
    divided = replace(columns, recorded_at=None, category="(1 / (id - 1))::text")
    with pytest.raises(LogDefinitionError, match="division by zero"):
        walk(TableLog("events", columns=divided).open(db), db)


# --- what counts as an event -----------------------------------------------------------------------------------------


def test_only_says_which_rows_are_events(db):
    fill(db, 6)
    log = replace(LOG, only="event.stream LIKE 's%' AND id % 2 = 0 -- even ones").open(db)
    assert positions(walk(log, db)) == [2, 4, 6]
    assert (log.count(db, ALL), log.keys(db, ALL, above=3), log.totals(db, ALL)) == (3, {(4,), (6,)}, (3, 6, 6))


@pytest.mark.parametrize("condition", [
    "archived", "EXISTS (SELECT FROM archive a WHERE a.stream = event.stream)"])
def test_archived_streams_are_neither_read_nor_counted(db, condition):
    fill(db, 14)
    db.execute("ALTER TABLE events ADD archived boolean")  # NULL is not archived
    db.execute("CREATE TABLE archive (stream text)")
    log = replace(LOG, archived=condition).open(db)
    before = log.state(db)
    assert log.count(db, ALL) == 14
    db.execute("UPDATE events SET archived = true WHERE stream = 's3'")
    db.execute("INSERT INTO archive VALUES ('s3')")
    assert positions(walk(log, db)) == [n for n in range(1, 15) if n % 7 != 3]
    assert (log.count(db, ALL), log.totals(db, ALL)) == (12, (12, 14, 14))
    assert log.keys(db, ALL, above=8) == {(9,), (11,), (12,), (13,), (14,)}
    after = log.state(db)
    assert (before.archive.streams, after.archive.streams) == (0, 1)
    assert "its archived streams changed (0 before, 1 now)" in before.differences(after)
    everything = replace(LOG, archived=condition, replay_archived=True).open(db)
    assert everything.count(db, ALL) == 14
    assert everything.state(db).archive is None


def test_other_archived_streams_are_noticed_when_their_number_is_the_same(db):
    fill(db, 14)
    db.execute("CREATE TABLE archive (stream text)")
    db.execute("INSERT INTO archive VALUES ('s3')")
    log = replace(LOG, archived="EXISTS (SELECT FROM archive a WHERE a.stream = event.stream)").open(db)
    before = log.state(db)
    db.execute("UPDATE archive SET stream = 's4'")
    assert before.differences(log.state(db)) == ["its archived streams changed (1 before, 1 now)"]
    assert before.differences(log.state(db, streams=False)) == []


# --- append-only -----------------------------------------------------------------------------------------------------


def test_updates_and_deletes_are_noticed(db):
    fill(db, 5)
    log = LOG.open(db)
    before = log.state(db)
    assert before.differences(log.state(db)) == []
    db.execute("INSERT INTO events (stream) VALUES ('more')")
    db.execute("UPDATE events SET data = '{\"corrected\": true}' WHERE id = 2")
    db.execute("DELETE FROM events WHERE id IN (3, 4)")
    # The counters come about a second late, and not always together.
    wait_until(lambda: len(before.differences(log.state(db))) == 2)
    assert before.differences(log.state(db)) == ["1 row was updated", "2 rows were deleted"]


def test_a_reset_of_the_statistics_is_said(db):
    log = LOG.open(db)
    state = log.state(db)
    used = replace(state, updated=3, deleted=1)
    assert used.differences(state) == [
        "its statistics were reset, so whether rows were updated is not known",
        "its statistics were reset, so whether rows were deleted is not known"]


def test_partitions_that_come_and_go_are_noticed(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE SEQUENCE given")
    db.execute("CREATE TABLE events (id bigint PRIMARY KEY DEFAULT nextval('given'), stream text, category text,"
               " version int, type text, data jsonb) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE first PARTITION OF events FOR VALUES FROM (1) TO (100)")
    log = LOG.open(db)
    before = log.state(db)
    db.execute("CREATE TABLE second PARTITION OF events FOR VALUES FROM (100) TO (200)")
    db.execute("ALTER TABLE events DETACH PARTITION first")
    assert before.differences(log.state(db)) == [
        "table public.second came to it", "table public.first went from it"]


def test_positions_that_the_sequence_did_not_give_are_noticed(db):
    fill(db, 3)
    log = LOG.open(db)
    before = log.state(db)
    db.execute("INSERT INTO events (id, stream) VALUES (1000, 'imported')")
    assert before.differences(log.state(db)) == ["position 1000 was not given by its sequence"]


def test_a_view_that_reads_another_table_now_is_noticed(db):
    db.execute("CREATE TABLE elsewhere (LIKE events INCLUDING ALL)")
    db.execute("CREATE VIEW seen AS SELECT * FROM events")
    log = TableLog("seen", columns=COLUMNS).open(db)
    before = log.state(db)
    db.execute("CREATE OR REPLACE VIEW seen AS SELECT * FROM elsewhere")
    assert before.differences(log.state(db)) == [
        "table public.elsewhere came to it", "table public.events went from it"]


# --- how it is read --------------------------------------------------------------------------------------------------


def test_a_page_is_an_index_scan(db):
    fill(db, 5000)
    db.execute("ANALYZE events")
    plan = LOG.open(db).read_plan(db, ALL)
    assert plan.index_scan
    assert plan.indexes == ("events_pkey",)
    assert "Sort" not in plan.nodes
    assert plan.advice == ()


def test_a_page_walks_the_index_also_where_the_planner_expects_next_to_nothing(db):
    # Category and type depend on each other; without statistics on both the planner multiplies their shares, and
    # would sort what is left of the log for each page.
    db.execute("INSERT INTO events (stream, category, type) SELECT 's', 'c' || n % 50, 't' || n % 50"
               " FROM generate_series(1, 20000) n")
    db.execute("ANALYZE events")
    log, narrow = LOG.open(db), Selection(("t7",), ("c7",))
    statement = log.statements.page(narrow, above=1, limit=1000)
    naive = db.execute(sql.SQL("EXPLAIN (FORMAT JSON) {}").format(statement)).fetchone()[0][0]["Plan"]
    assert "Sort" in str(naive)
    assert log.read_plan(db, narrow).index_scan
    assert len(walk(log, db, narrow, limit=50)) == 400


def test_the_missing_index_is_named_and_then_used(db):
    db.execute("INSERT INTO events (stream, type) SELECT 's', CASE WHEN n % 5000 = 0 THEN 'rare' || n / 5000"
               " ELSE 'usual' END FROM generate_series(1, 20000) n")
    db.execute("ANALYZE events")
    rare = Selection(("rare1", "rare2", "rare3", "never"))
    log = LOG.open(db)
    (advice,) = log.read_plan(db, rare).advice
    assert advice == 'CREATE INDEX CONCURRENTLY ON "public"."events" ("type", "id")'
    db.execute(advice)
    log = LOG.open(db)
    plan = log.read_plan(db, rare)
    assert plan.advice == ()
    assert plan.index_scan
    assert plan.indexes == ("events_type_id_idx",)
    assert positions(walk(log, db, rare, limit=1)) == [5000, 10000, 15000]
    assert positions(walk(log, db, rare, limit=2, upto=10000)) == [5000, 10000]
    assert positions(walk(log, db, Selection(("rare4", "usual")), limit=500)) == [
        n for n in range(1, 20001) if n % 5000 or n == 20000]


def test_a_key_of_position_and_tenant_is_one_range_of_the_index(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE SEQUENCE given")
    db.execute("CREATE TABLE events (id bigint NOT NULL DEFAULT nextval('given'), tenant text NOT NULL, stream text,"
               " type text, data jsonb, PRIMARY KEY (id, tenant))")
    db.execute("INSERT INTO events (tenant, stream, type, data) SELECT 't' || n % 5, 's', 'opened', '{}'"
               " FROM generate_series(1, 5000) n")
    db.execute("ANALYZE events")
    columns = Columns(position="id", tenant="tenant", stream="stream", type="type", data="data")
    log = TableLog("events", columns=columns).open(db)
    statement = log.statements.page(ALL, after=(2500, "t1"), limit=100)
    plan = db.execute(sql.SQL("EXPLAIN {}").format(statement)).fetchall()
    text = "\n".join(row[0] for row in plan)
    assert "Index Cond: (ROW(id, tenant) > ROW('2500'::bigint, 't1'::text))" in text
    either = db.execute("EXPLAIN SELECT * FROM events WHERE id > 2500 OR (id = 2500 AND tenant > 't1')"
                        " ORDER BY id, tenant LIMIT 100").fetchall()
    assert not any("Index Cond: (ROW" in row[0] for row in either), "the OR form is no range of it"


# --- keys ------------------------------------------------------------------------------------------------------------


def per_tenant(db):
    """Positions that each tenant counts for itself: 3 tenants, 10 events each."""
    db.execute("CREATE TABLE per_tenant (id bigint NOT NULL, tenant text NOT NULL, stream text, type text, data jsonb)")
    db.execute("INSERT INTO per_tenant SELECT n, t, 's', 'opened', '{}' FROM generate_series(1, 10) n,"
               " unnest('{a,b,c}'::text[]) t")
    return TableLog("per_tenant", columns=Columns(position="id", tenant="tenant", stream="stream", type="type",
                                                  data="data"), completeness="count")


def test_a_position_that_is_not_unique_is_refused(db):
    log = per_tenant(db)
    with pytest.raises(RefusedError, match=r"No unique index makes public\.per_tenant\.id a key") as caught:
        log.open(db)
    assert 'CREATE UNIQUE INDEX CONCURRENTLY ON "public"."per_tenant" ("id")' in caught.value.hint
    # What the naive keyset loses: page on page of four, ties at the end of a page are gone.
    naive, after = 0, 0
    while rows := db.execute("SELECT id FROM per_tenant WHERE id > %s ORDER BY id LIMIT 4", [after]).fetchall():
        naive, after = naive + len(rows), rows[-1][0]
    assert naive < 30


def test_position_and_tenant_are_a_key_together(db):
    log = per_tenant(db)
    db.execute("CREATE UNIQUE INDEX ON per_tenant (id, tenant)")
    opened = log.open(db)
    rows = walk(opened, db, limit=4)
    assert [raw.key for raw in rows] == [(n, t) for n in range(1, 11) for t in "abc"]
    assert opened.keys(db, ALL, above=9) == {(10, "a"), (10, "b"), (10, "c")}


def test_the_key_must_begin_with_the_position(db):
    log = per_tenant(db)
    db.execute("CREATE UNIQUE INDEX ON per_tenant (tenant, id)")
    with pytest.raises(RefusedError, match="No unique index"):
        log.open(db)


def test_tenants_that_count_for_themselves_beside_a_sequence_stop_the_run(db):
    log = replace(per_tenant(db), completeness="auto", sequence="given")
    db.execute("CREATE UNIQUE INDEX ON per_tenant (id, tenant); CREATE SEQUENCE given; SELECT setval('given', 100)")
    opened = log.open(db)
    with pytest.raises(RefusedError, match="two events at position 1"):
        opened.page(db, ALL, after=None, upto=None, limit=2)
    with pytest.raises(RefusedError, match="two events at position 1"):
        opened.page(db, ALL, after=(1, "a"), upto=None, limit=1)


@pytest.mark.parametrize("index", [
    "CREATE INDEX ON loose (id)",
    "CREATE UNIQUE INDEX ON loose (id) WHERE id > 5",
    "CREATE UNIQUE INDEX ON loose ((id + 0))",
    "CREATE UNIQUE INDEX ON loose (id, stream)",
])
def test_an_index_that_does_not_make_the_position_a_key_is_not_enough(db, index):
    db.execute("CREATE TABLE loose (id bigserial, stream text, type text, data jsonb)")
    db.execute(index)
    with pytest.raises(RefusedError, match="No unique index"):
        TableLog("loose", columns=Columns(position="id", stream="stream", type="type", data="data")).open(db)


def test_a_position_that_may_be_null_is_refused(db):
    db.execute("CREATE SEQUENCE given; CREATE TABLE loose (id bigint UNIQUE DEFAULT nextval('given'), stream text,"
               " type text, data jsonb)")
    log = TableLog("loose", columns=Columns(position="id", stream="stream", type="type", data="data"))
    with pytest.raises(RefusedError, match="may be NULL") as caught:
        log.open(db)
    db.execute(caught.value.hint)
    assert log.open(db).sequence.label == "public.given"


# --- the sequence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change, why", [
    ("ALTER SEQUENCE events_id_seq CACHE 10", "CACHE 10"),
    ("ALTER SEQUENCE events_id_seq INCREMENT 2", "INCREMENT 2"),
    ("ALTER SEQUENCE events_id_seq INCREMENT -1 MINVALUE -100", "descends"),
    ("ALTER SEQUENCE events_id_seq CYCLE", "CYCLE"),
    ("ALTER TABLE events ALTER id DROP DEFAULT; ALTER SEQUENCE events_id_seq OWNED BY NONE", "No sequence gives"),
    ("INSERT INTO events (id, stream) VALUES (1000, 'replica')", "has given 3 only"),
])
def test_a_sequence_that_cannot_be_relied_on_is_refused_with_the_way_out(db, change, why):
    fill(db, 3)
    db.execute(change)
    with pytest.raises(RefusedError, match=why) as caught:
        LOG.open(db)
    assert 'completeness="count"' in caught.value.hint
    counting = replace(LOG, completeness="count").open(db)
    assert (counting.complete, counting.sequence) == (False, None)
    assert counting.count(db, ALL) >= 3


@pytest.mark.parametrize("change", ["CACHE 10", "INCREMENT 2", "CYCLE"])
def test_the_hint_mends_the_sequence(db, change):
    db.execute("ALTER SEQUENCE events_id_seq " + change)
    with pytest.raises(RefusedError) as caught:
        LOG.open(db)
    db.execute(caught.value.hint.split(";")[0].split(",")[0])
    assert LOG.open(db).complete


def test_a_sequence_behind_the_log_is_mended_by_the_hint(db):
    db.execute("INSERT INTO events (id, stream) VALUES (1000, 'a')")
    with pytest.raises(RefusedError, match="has given 0 only") as caught:
        LOG.open(db)
    db.execute(caught.value.hint.split(", if")[0])
    assert LOG.open(db).horizon(db, own_pids=()).position == 1000


def test_a_position_of_a_default_of_another_sequence_counts_not_the_one_it_owns(db):
    db.execute("CREATE SEQUENCE shared; ALTER TABLE events ALTER id SET DEFAULT nextval('shared')")
    assert LOG.open(db).sequence.label == "public.shared"


def test_a_sequence_that_the_column_only_owns_is_found(db):
    db.execute("ALTER TABLE events ALTER id DROP DEFAULT")  # an append function draws
    assert LOG.open(db).sequence.label == "public.events_id_seq"


def test_partitions_that_draw_from_another_sequence_are_refused(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute("CREATE SEQUENCE given; CREATE SEQUENCE other")
    db.execute("CREATE TABLE events (id bigint PRIMARY KEY DEFAULT nextval('given'), stream text, category text,"
               " version int, type text, data jsonb) PARTITION BY RANGE (id)")
    db.execute("CREATE TABLE leaf PARTITION OF events FOR VALUES FROM (1) TO (100)")
    LOG.open(db)
    db.execute("ALTER TABLE leaf ALTER id SET DEFAULT nextval('other')")
    with pytest.raises(RefusedError, match=r"public\.given, public\.other"):
        LOG.open(db)
    assert replace(LOG, sequence="given").open(db).sequence.label == "public.given"


def test_a_named_sequence_must_exist(db):
    with pytest.raises(LogDefinitionError, match="'nothing'"):
        replace(LOG, sequence="nothing").open(db)


def test_positions_begin_at_one(db):
    db.execute("INSERT INTO events (id, stream) VALUES (0, 'a')")
    with pytest.raises(RefusedError, match="positions begin at 1"):
        LOG.open(db)


# --- names, kinds, views ---------------------------------------------------------------------------------------------


def test_an_unknown_log_gets_the_closest_names(db):
    db.execute("CREATE SCHEMA sales; CREATE TABLE sales.evens ()")
    with pytest.raises(LogDefinitionError, match="'event' does not exist in database") as caught:
        TableLog("event", columns=COLUMNS).open(db)
    assert caught.value.hint.startswith("did you mean events")
    with pytest.raises(LogDefinitionError) as caught:
        TableLog("sales.events", columns=COLUMNS).open(db)
    assert "sales.evens" in caught.value.hint
    with pytest.raises(LogDefinitionError):
        TableLog("this is not; a name", columns=COLUMNS).open(db)
    with pytest.raises(LogDefinitionError):
        TableLog("a.b.c.d", columns=COLUMNS).open(db)


def test_an_unknown_column_gets_the_closest_names(db):
    with pytest.raises(LogDefinitionError, match=r"no column 'streem' \(Columns\(stream='streem'\)\)") as caught:
        TableLog("events", columns=replace(COLUMNS, stream="streem")).open(db)
    assert caught.value.hint == "did you mean stream?"
    with pytest.raises(LogDefinitionError) as caught:
        TableLog("events", columns=replace(COLUMNS, data="zzz")).open(db)
    assert "there is id, stream, category, version, type, data" in caught.value.hint


@pytest.mark.parametrize("role, value, why", [
    ("position", "stream", "position must be int2 or int4 or int8"),
    ("stream_version", "stream", "stream_version must be int2"),
    ("data", "id", "data must be jsonb"),
    ("recorded_at", "stream", "recorded_at must be timestamptz"),
    ("category", "nothing->>'x'", "category of the event log does not work"),
    ("category", "(", "category of the event log does not work"),
])
def test_a_column_of_the_wrong_kind_is_named(db, role, value, why):
    with pytest.raises(LogDefinitionError, match=why):
        TableLog("events", columns=replace(COLUMNS, **{role: value})).open(db)


@pytest.mark.parametrize("name", ["only", "archived"])
@pytest.mark.parametrize("condition", ["nothing", "id +", "id", "SELECT 1"])
def test_a_condition_that_does_not_work_is_named(db, name, condition):
    with pytest.raises(LogDefinitionError, match=f"{name} of the event log does not work"):
        replace(LOG, **{name: condition}).open(db)


@pytest.mark.parametrize("make, name, error", [
    (f"{FOREIGN}; CREATE FOREIGN TABLE log (id bigint) SERVER far", "log", RefusedError),
    ("CREATE MATERIALIZED VIEW log AS SELECT * FROM events", "log", RefusedError),
    ("CREATE MATERIALIZED VIEW m AS SELECT * FROM events; CREATE VIEW log AS SELECT * FROM m", "log", RefusedError),
    ("CREATE TABLE child () INHERITS (events)", "events", RefusedError),
    ("CREATE TEMP TABLE log (LIKE events)", "log", LogDefinitionError),
    ("CREATE INDEX log ON events (stream)", "log", LogDefinitionError),
    ("CREATE SEQUENCE log", "log", LogDefinitionError),
])
def test_what_is_no_log_is_refused(db, make, name, error):
    db.execute(make)
    with pytest.raises(error, match=rf"\.({name}|m|child)\b"):
        TableLog(name, columns=COLUMNS).open(db)


def test_a_partition_on_another_server_is_refused(connect, bare_dsn):
    db = connect(bare_dsn, autocommit=True)
    db.execute(FOREIGN)
    db.execute("CREATE TABLE events (id bigserial, stream text, category text, version int, type text, data jsonb)"
               " PARTITION BY RANGE (id)")
    db.execute("CREATE FOREIGN TABLE old PARTITION OF events FOR VALUES FROM (1) TO (100) SERVER far")
    with pytest.raises(RefusedError, match=r"foreign table public\.old"):
        LOG.open(db)


@pytest.mark.parametrize("name", ['"Event Log"', "Event Log"])
def test_odd_names_are_names(db, name):
    db.execute('ALTER TABLE events RENAME TO "Event Log"; ALTER TABLE "Event Log" RENAME id TO "Pos%"')
    fill_odd = 'INSERT INTO "Event Log" (stream) VALUES (\'a\'), (\'b\')'
    db.execute(fill_odd)
    db.execute('ALTER TABLE "Event Log" RENAME "Pos%" TO "Größe"')
    log = TableLog(name, columns=replace(COLUMNS, position="Größe", stream='"stream"')).open(db)
    assert positions(walk(log, db)) == [1, 2]


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_simple_view_is_read_through_to_its_table(connect, bare_dsn, partitioned):
    db = connect(bare_dsn, autocommit=True)
    db.execute('CREATE SEQUENCE given; CREATE TABLE "Base" ("Id" bigint PRIMARY KEY DEFAULT nextval(\'given\'), s text,'
               " t text, d jsonb)" + (' PARTITION BY RANGE ("Id")' if partitioned else ""))
    if partitioned:
        db.execute('CREATE TABLE leaf1 PARTITION OF "Base" FOR VALUES FROM (1) TO (3)')
        db.execute('CREATE TABLE leaf2 PARTITION OF "Base" FOR VALUES FROM (3) TO (100)')
    db.execute('CREATE VIEW inner_view AS SELECT "Id" AS pos, s, t, d FROM "Base" WHERE t <> \'noise\'')
    db.execute("CREATE VIEW log AS SELECT s AS stream, t AS type, d AS data, pos AS position FROM inner_view")
    db.execute('INSERT INTO "Base" (s, t, d) SELECT \'s\', \'opened\', \'{}\' FROM generate_series(1, 5)')
    log = TableLog("log", columns=Columns(position="position", stream="stream", type="type", data="data")).open(db)
    assert (log.source.table.label, log.source.column, log.sequence.label) == ("public.Base", "Id", "public.given")
    assert positions(walk(log, db, limit=2)) == [1, 2, 3, 4, 5]
    assert log.read_plan(db, ALL).indexes


def test_a_view_of_a_join_needs_its_sequence_named(db):
    db.execute("CREATE TABLE kinds (name text PRIMARY KEY); INSERT INTO kinds VALUES ('opened'), ('moved')")
    db.execute("CREATE VIEW log AS SELECT e.* FROM events e JOIN kinds k ON k.name = e.type")
    fill(db, 6)
    with pytest.raises(RefusedError, match="view that does not simply show") as caught:
        TableLog("log", columns=COLUMNS).open(db)
    assert "TableLog(sequence=…)" in caught.value.hint
    log = TableLog("log", columns=COLUMNS, sequence="events_id_seq").open(db)
    assert (log.source.table.label, log.source.column) == ("public.events", "id")
    assert positions(walk(log, db, limit=2)) == [1, 2, 3, 4, 5, 6]


def test_a_view_that_shows_an_event_twice_stops_the_run(db):
    db.execute("CREATE TABLE links (stream text); INSERT INTO links VALUES ('s1'), ('s1'), ('s2')")
    db.execute("CREATE VIEW log AS SELECT e.* FROM events e JOIN links USING (stream)")
    fill(db, 2)
    log = TableLog("log", columns=COLUMNS, sequence="events_id_seq").open(db)
    with pytest.raises(RefusedError, match="two events at position 1"):
        log.page(db, ALL, after=None, upto=None, limit=10)
    with pytest.raises(RefusedError, match="two events at position 1"):
        log.tail(db, ALL, above=0)


# --- privileges ------------------------------------------------------------------------------------------------------


def test_each_missing_privilege_comes_with_its_grant(connect, db, bare_dsn, role):
    reader = role()
    db.execute("CREATE SCHEMA closed; CREATE TABLE archive (stream text)")
    db.execute("ALTER TABLE events SET SCHEMA closed")
    connection = connect(reader.dsn(bare_dsn), autocommit=True)
    definition = TableLog("closed.events", columns=COLUMNS,
                          archived="EXISTS (SELECT FROM archive a WHERE a.stream = event.stream)")
    grants = []
    for _ in range(4):
        with pytest.raises(MissingPrivilege) as caught:
            definition.open(connection)
        grants.append(caught.value.hint.split(", and")[0])
        db.execute("GRANT SELECT ON archive TO " + reader.name if len(grants) == 3 else grants[-1])
    assert grants[:2] == [f"GRANT USAGE ON SCHEMA closed TO {reader.name}",
                          f'GRANT SELECT ON "closed"."events" TO "{reader.name}"']
    assert grants[3] == f'GRANT SELECT ON SEQUENCE "closed"."events_id_seq" TO "{reader.name}"'
    assert definition.open(connection).totals(connection, ALL) == (0, 0, 0)


def test_columns_may_be_granted_one_by_one(connect, db, bare_dsn, role):
    reader = role()
    db.execute("ALTER TABLE events ADD secret text")
    db.execute(f"GRANT SELECT (id, stream, category, version, type, data) ON events TO {reader.name};"
               f"GRANT USAGE ON SEQUENCE events_id_seq TO {reader.name}")
    fill(db, 3)
    connection = connect(reader.dsn(bare_dsn), autocommit=True)
    assert len(walk(LOG.open(connection), connection)) == 3


@pytest.mark.parametrize("through_view", [False, True])
def test_row_security_that_hides_events_is_refused(connect, db, bare_dsn, role, through_view):
    reader = role()
    db.execute("CREATE VIEW seen AS SELECT * FROM events")
    db.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON events USING (stream = 's1')")
    if through_view:
        owner = role(hint="owner")
        db.execute(f"ALTER VIEW seen OWNER TO {owner.name}; GRANT SELECT ON events TO {owner.name}")
    name = "seen" if through_view else "events"
    db.execute(f"GRANT SELECT ON {name} TO {reader.name}; GRANT SELECT ON SEQUENCE events_id_seq TO {reader.name}")
    connection = connect(reader.dsn(bare_dsn), autocommit=True)
    with pytest.raises(RefusedError, match="Row security hides events") as caught:
        TableLog(name, columns=COLUMNS).open(connection)
    assert "BYPASSRLS" in caught.value.hint


def test_row_security_that_comes_during_a_run_is_an_error_and_not_a_loss(connect, db, bare_dsn, role):
    reader = role()
    fill(db, 7)
    db.execute(f"GRANT SELECT ON events TO {reader.name}; GRANT SELECT ON SEQUENCE events_id_seq TO {reader.name}")
    connection = connect(reader.dsn(bare_dsn), autocommit=True)
    log = LOG.open(connection)
    db.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON events USING (stream = 's1')")
    assert connection.execute("SELECT count(*) FROM events").fetchone() == (1,)
    with pytest.raises(RefusedError, match="row-level security policy"):
        log.page(connection, ALL, after=None, upto=None, limit=10)
    with pytest.raises(RefusedError, match="row-level security policy"):
        log.count(connection, ALL)
    assert connection.execute("SHOW row_security").fetchone() == ("on",)


def test_row_security_is_part_of_a_log_s_state(connect, db, bare_dsn, role):
    reader = role()
    db.execute(f"GRANT SELECT ON events TO {reader.name}; GRANT SELECT ON SEQUENCE events_id_seq TO {reader.name}")
    connection = connect(reader.dsn(bare_dsn), autocommit=True)
    state = LOG.open(connection).state(connection)
    assert state.differences(replace(state, filtered=frozenset({"public.events"}))) == [
        "row security now hides rows of public.events"]


def test_a_log_that_is_altered_under_the_reader_is_an_error_that_says_so(db):
    log = LOG.open(db)
    db.execute("ALTER TABLE events RENAME data TO body")
    with pytest.raises(LogChanged, match="data does not exist"):
        log.page(db, ALL, after=None, upto=None, limit=1)
    db.execute("DROP TABLE events")
    with pytest.raises(LogChanged, match="is not the one that was opened"):
        log.count(db, ALL)


# --- live ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decode", ["json", "json-decimal"])
@pytest.mark.parametrize("kind", ["jsonb", "text", "bytea"])
def test_project_sees_what_a_rebuild_sees(connect, bare_dsn, decode, kind):
    db = connect(bare_dsn, autocommit=True, row_factory=dict_row)
    db.execute(sql.SQL("CREATE TABLE events (id bigserial PRIMARY KEY, stream uuid, type text, data {}, at timestamptz,"
                       " tenant int)").format(sql.SQL(kind)))
    log = TableLog("events", decode=decode, columns=Columns(
        position="id", stream="stream", type="type", data="data", recorded_at="at", tenant="tenant"))
    body = '{"n": 123456789012345678901234567890, "f": 1.25, "s": "ß", "l": [1, {"x": null}]}'
    row = db.execute("INSERT INTO events (stream, type, data, at, tenant)"
                     " VALUES (gen_random_uuid(), 'opened', %s, now(), 3) RETURNING *",
                     [body.encode() if kind == "bytea" else body]).fetchone()
    reader = connect(bare_dsn, autocommit=True)
    opened = log.open(reader)
    assert replace(log.event(row), replaying=True) == opened.decode(walk(opened, reader)[0], replaying=True)


def test_project_sees_what_a_rebuild_sees_of_values_that_were_not_yet_written(db):
    values = {"amount": Decimal("1.10"), "pair": (1, 2), 3: "k", "big": 10**30, "on": datetime(2024, 1, 2, tzinfo=UTC)}
    text = f'{{"amount": 1.10, "pair": [1, 2], "3": "k", "big": {10**30}, "on": "2024-01-02T00:00:00Z"}}'
    db.execute("INSERT INTO events (stream, data) VALUES ('a', %s)", [text])
    log = replace(LOG, decode="json-decimal")
    opened = log.open(db)
    rebuilt = opened.decode(walk(opened, db)[0], replaying=False)
    row = {"id": 1, "stream": "a", "category": "account", "version": 1, "type": "opened"}
    assert log.event({**row, "data": values}) == rebuilt
    assert log.event({**row, "data": Jsonb(values)}) == rebuilt
