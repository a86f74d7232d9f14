"""SqlHandlers, Fold and BatchSql give the same rows from any events, beside writers that commit late."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.json import Jsonb

from rebuilder import BatchSql, Fold, Projection, SqlHandlers
from tests.bank import EVENTS, append, make_rebuilder

TABLE = """
CREATE TABLE {} (stream text, slot int, note text, total numeric(12, 2) NOT NULL, tags jsonb NOT NULL,
                 PRIMARY KEY (slot, stream))
"""
PUT = """
INSERT INTO in_sql AS b (stream, slot, note, total, tags) VALUES (%s, %s, %s, 0, '[]')
ON CONFLICT (slot, stream) DO UPDATE SET note = excluded.note
"""
ADDED = """
INSERT INTO in_sql AS b (stream, slot, total, tags) VALUES (%s, %s, %s, %s)
ON CONFLICT (slot, stream) DO UPDATE SET total = b.total + excluded.total, tags = b.tags || excluded.tags
"""


def by_handlers() -> SqlHandlers:
    handlers = SqlHandlers()

    @handlers.on("Put")
    def put(event, target):
        target.execute(PUT, (event.stream, event.data["slot"], event.data["note"]))

    @handlers.on("Added")
    def added(event, target):
        target.execute(ADDED, (event.stream, event.data["slot"], event.data["n"], Jsonb([event.data["n"]])))

    @handlers.on("Removed")
    def removed(event, target):
        target.execute("DELETE FROM in_sql WHERE stream = %s AND slot = %s", (event.stream, event.data["slot"]))

    return handlers


def by_fold() -> Fold:


    fold = Fold()

    def key(event):
        return event.data["slot"], event.stream

    @fold.on("Put", key=key)
    def put(row, event):
        return {**(row or {"total": Decimal(0), "tags": []}), "note": event.data["note"]}

    @fold.on("Added", key=key)
    def added(row, event):
        row = row or {"note": None, "total": Decimal(0), "tags": []}
        row["total"] += event.data["n"]
        row["tags"].append(event.data["n"])
        return row

    @fold.on("Removed", key=key)
    def removed(_row, _event):
        return None

    return fold


SINCE = """
WITH keyed AS (SELECT *, (data ->> 'slot')::int AS slot FROM batch),
     since AS (SELECT k.* FROM keyed k WHERE type <> 'Removed' AND NOT EXISTS (
         SELECT FROM keyed r WHERE r.type = 'Removed' AND (r.stream, r.slot) = (k.stream, k.slot)
                               AND r.position > k.position))
"""


def by_batch() -> BatchSql:
    return BatchSql(
        "DELETE FROM in_batch b USING batch e WHERE e.type = 'Removed' AND b.stream = e.stream"
        " AND b.slot = (e.data ->> 'slot')::int",
        SINCE + "INSERT INTO in_batch AS b (stream, slot, total, tags)"
        " SELECT stream, slot, coalesce(sum((data ->> 'n')::int), 0),"
        "        coalesce(jsonb_agg(data -> 'n' ORDER BY position) FILTER (WHERE type = 'Added'), '[]')"
        " FROM since GROUP BY stream, slot ON CONFLICT (slot, stream) DO UPDATE"
        " SET total = b.total + excluded.total, tags = b.tags || excluded.tags",
        SINCE + "UPDATE in_batch b SET note = p.note FROM (SELECT DISTINCT ON (stream, slot) stream, slot,"
        " data ->> 'note' AS note FROM since WHERE type = 'Put' ORDER BY stream, slot, position DESC) AS p"
        " WHERE b.stream = p.stream AND b.slot = p.slot",
        types=["Added", "Put", "Removed"])


def replayed(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows that the events make, computed here."""
    state: dict[tuple[str, int], list[Any]] = {}
    for stream, type_, data in rows:
        key = (stream, data["slot"])
        if type_ == "Removed":
            state.pop(key, None)
            continue
        row = state.setdefault(key, [None, 0, []])
        if type_ == "Put":
            row[0] = data["note"]
        else:
            row[1] += data["n"]
            row[2] = [*row[2], data["n"]]
    return sorted((*key, *row) for key, row in state.items())


streams = st.sampled_from(["a", "b", "c'\\ \t"])
slots = st.integers(0, 2)
notes = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4))
event = st.one_of(
    st.tuples(streams, st.just("Put"), st.fixed_dictionaries({"slot": slots, "note": notes})),
    st.tuples(streams, st.just("Added"), st.fixed_dictionaries({"slot": slots, "n": st.integers(-9, 9)})),
    st.tuples(streams, st.just("Removed"), st.fixed_dictionaries({"slot": slots})))
TABLES = {"in_sql": by_handlers, "in_fold": by_fold, "in_batch": by_batch}


@pytest.fixture
def bank(connect, dsn):
    db = connect(dsn, autocommit=True)
    db.execute(EVENTS)
    for table in TABLES:
        db.execute(sql.SQL(TABLE).format(sql.Identifier(table)))
    return db, [connect(dsn), connect(dsn)]


@pytest.mark.timeout(300)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(before=st.lists(event, max_size=40), during=st.lists(event, max_size=24), pages=st.sampled_from([1, 3, 1000]),
       memory=st.sampled_from([0, 2**28]), quarantine=st.booleans())
def test_all_kinds_give_the_rows_of_a_replay(bank, dsn, before, during, pages, memory, quarantine):
    """Deletes, NULLs and a composite key; two writers whose transactions overlap, so that positions commit late."""
    db, writers = bank
    db.execute("TRUNCATE events, in_sql, in_fold, in_batch")
    rebuilder = make_rebuilder(
        dsn, *[Projection(table, version=1, tables=[table], handlers=make()) for table, make in TABLES.items()],
        settings={"batch": pages, "fold_page": pages, "batch_page": pages, "fold_memory": memory})
    for stream, type_, data in before:
        append(db, stream, type_, data)
    parts = iter([during[at::3] for at in range(3)])
    for table in TABLES:
        # What live holds before its rebuild is replaced; from then on the writers feed it.
        mine = next(parts)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write, writers, mine, rebuilder)
            rebuilder.rebuild(table, quarantine=quarantine, allow=["shrink", "null-column"])
            writing.result()
    truth = replayed(db.execute("SELECT stream, type, data FROM events ORDER BY id").fetchall())
    for table in TABLES:
        rows = db.execute(sql.SQL("SELECT stream, slot, note, total, tags FROM {}").format(
            sql.Identifier(table))).fetchall()
        assert sorted(rows) == truth, table


def write(writers, events, rebuilder):
    """By twos: the first of a pair commits after the second, unless both would change one row."""
    for first, second in zip(events[::2], [*events[1::2], None], strict=False):
        append_in(writers[0], first, rebuilder)
        if second is not None and (second[0], second[2]["slot"]) == (first[0], first[2]["slot"]):
            writers[0].commit()
        if second is not None:
            append_in(writers[1], second, rebuilder)
            writers[1].commit()
        writers[0].commit()


def append_in(connection, one, rebuilder):
    connection.execute("SELECT")
    append(connection, *one, live=rebuilder)
