"""Step 4: copy the shadow into a fresh table whose rows every snapshot can see, and build the remaining indexes.

Rows of ``COPY ... WITH (FREEZE)`` are visible to every snapshot, so a COPY, a STABLE function or a REPEATABLE READ
reader that waited on the fence finds them. See https://www.postgresql.org/docs/current/sql-copy.html.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from psycopg import sql

from rebuilder.catalog import restore_positions, shadow_positions
from rebuilder.catalog.blueprint import Column, LiveTable
from rebuilder.domain.slowdown import Slowdown
from rebuilder.engine.applier import deferred_violation
from rebuilder.engine.run import Run
from rebuilder.engine.shadow import Shadow
from rebuilder.sql import load
from rebuilder.store.sessions import Connection, translated

if TYPE_CHECKING:
    from rebuilder.engine.replay import Replay

_QUERIES = load("queries")
FRESH = "rebuilder_fresh"
_SMALLEST = 500
_FEW_VERSIONS = 5000
"""Row versions left behind that slow nothing down yet, even if all are one row's."""


def freeze(run: Run, shadow: Shadow) -> None:
    """Make all rows of the shadow visible to every snapshot; must run outside any savepoint, or FREEZE is refused."""
    began = time.monotonic()
    with translated("freezing the shadow"):
        # Pending deferred checks would make TRUNCATE and DROP of the old copy fail (55006).
        run.main.execute("SET CONSTRAINTS ALL IMMEDIATE")
        # For the indexes; what the server allows already is not taken away.
        run.main.execute(_QUERIES["index_resources"], {
            "memory": run.settings.index_memory, "workers": run.settings.index_workers})
        shadow.applier.settle(but_bulk=True)
        for table in run.blueprint.tables:
            _freeze_table(run, shadow, table)
        _defer_again(run, shadow)
    shadow.frozen_at = time.monotonic()
    shadow.freeze_cost = shadow.frozen_at - began


def thin_out(run: Run, shadow: Shadow, replay: Replay, slowdown: Slowdown) -> None:
    """Copy the shadow during the bulk when row versions that updates left behind have cost more than that.

    A row updated often is slower to update each time, and can't be pruned inside the transaction: see
    :mod:`rebuilder.domain.slowdown`.
    """
    # After the freeze the attempts decide; FREEZE is refused inside a savepoint of the quarantine.
    if not slowdown.pays(rows=0) or shadow.frozen_at is not None or replay.segment.open:
        return
    row = run.main.execute(_QUERIES["versions"], {"schemas": list(shadow.work.values())}).fetchone()
    assert row is not None
    rows, dead = row
    if dead < _FEW_VERSIONS:
        slowdown.restart()  # something else is slow
        return
    # What deferred constraints still wait for may come with the next page.
    if not slowdown.pays(rows) or deferred_violation(run.main) is not None:
        return
    began = time.monotonic()
    with translated("copying the shadow"):
        run.main.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in run.blueprint.tables:
            _copy_table(run, shadow, table)
            run.main.execute(sql.SQL("ANALYZE {}").format(shadow.identifier(table)))
        _defer_again(run, shadow)
    slowdown.copied(rows, time.monotonic() - began)


def stale(run: Run, shadow: Shadow) -> bool:
    """Whether to freeze again before the next attempt: older than ten times its cost, and than ``freeze_age``."""
    if shadow.frozen_at is None:
        return True
    return time.monotonic() - shadow.frozen_at > max(10 * shadow.freeze_cost, run.settings.freeze_age)


def _freeze_table(run: Run, shadow: Shadow, table: LiveTable) -> None:
    """Copy a table, and give it all that it is to have."""
    _copy_table(run, shadow, table)
    # Before any other write to it: an index built after an update is not used until every older transaction has ended.
    for statement in (*run.blueprint.indexes(table, shadow.work), *run.blueprint.dress(table, shadow.work)):
        run.check()
        run.main.execute(statement)
    run.main.execute(sql.SQL("ANALYZE {}").format(shadow.identifier(table)))


def _copy_table(run: Run, shadow: Shadow, table: LiveTable) -> None:
    """Copy a table into a fresh one of its name, with its keys and positions, and drop it."""
    main, schema = run.main, shadow.work[table.schema]
    old, fresh = sql.Identifier(schema, table.name), sql.Identifier(schema, FRESH)
    positions = shadow_positions(main, table, shadow.work)
    for statement in run.blueprint.create(table, shadow.work, FRESH):
        main.execute(statement)
    if (bulk := shadow.applier.bulk(table)) is not None:
        _copy_in(run, fresh, sql.SQL("FREEZE"), bulk.columns, [bulk.chunks])
    else:
        _copy_in(run, fresh, sql.SQL("FORMAT binary, FREEZE"), table.stored, _chunks(run, main, old, table))
    # TRUNCATE gives the space back at once, DROP only at the end of the transaction.
    main.execute(sql.SQL("TRUNCATE {}").format(old))
    main.execute(sql.SQL("DROP TABLE {}").format(old))
    main.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(fresh, sql.Identifier(table.name)))
    for statement in run.blueprint.keys(table, shadow.work):
        run.check()
        main.execute(statement)
    restore_positions(main, table, shadow.work, positions)


def _copy_in(run: Run, fresh: sql.Identifier, options: sql.SQL, columns: Sequence[str],
             chunks: Iterable[Iterable[bytes]]) -> None:
    into = sql.SQL("COPY {} ({}) FROM STDIN WITH ({})").format(
        fresh, sql.SQL(", ").join(map(sql.Identifier, columns)), options)
    for chunk in chunks:
        run.check()
        with run.main.cursor().copy(into) as copy:
            for part in chunk:
                copy.write(part)


def _chunks(run: Run, main: Connection, old: sql.Identifier, table: LiveTable) -> Iterator[list[bytes]]:
    """The rows in keyset chunks, ordered by primary key: one connection can't copy out and in at once."""
    columns = sql.SQL(", ").join(map(sql.Identifier, table.stored))
    key = [column for column in table.columns if column.name in table.primary_key]
    key.sort(key=lambda column: table.primary_key.index(column.name))
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in key)
    rows, last = _rows_per_chunk(run, main, old), None
    while True:
        after = sql.SQL("") if last is None else sql.SQL("WHERE ROW({}) > ROW({})").format(names, _literal(key, last))
        bound = main.execute(sql.SQL("SELECT {} FROM (SELECT {} FROM {} {} ORDER BY {} LIMIT {}) AS page"
                                     " ORDER BY {} LIMIT 1").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in key), names, old,
            after, names, rows, sql.SQL(", ").join(sql.SQL("{} DESC").format(sql.Identifier(c.name)) for c in key),
        )).fetchone()
        if bound is None:
            return
        until = sql.SQL("{} ROW({}) <= ROW({})").format(sql.SQL("WHERE" if last is None else "AND"), names,
                                                        _literal(key, bound))
        out = sql.SQL("COPY (SELECT {} FROM {} {} {} ORDER BY {}) TO STDOUT WITH (FORMAT binary)").format(
            columns, old, after, until, names)
        with main.cursor().copy(out) as copy:
            chunk = [bytes(part) for part in copy]
        size = sum(map(len, chunk))
        yield chunk
        last = bound
        if size:
            rows = max(_SMALLEST, int(rows * min(4.0, run.settings.freeze_chunk / size)))


def _literal(key: list[Column], values: tuple[str, ...]) -> sql.Composed:
    parts = [sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(column.type))
             for column, value in zip(key, values, strict=True)]
    return sql.SQL(", ").join(parts)


def _rows_per_chunk(run: Run, main: Connection, old: sql.Identifier) -> int:
    """A first guess, to be corrected by each chunk."""
    row = main.execute(sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT 10000) AS few").format(old)).fetchone()
    assert row is not None
    few = int(row[0])
    if few < 10000:
        return max(_SMALLEST, few)
    return max(_SMALLEST, run.settings.freeze_chunk // 200)


def _defer_again(run: Run, shadow: Shadow) -> None:
    """Constraints declared INITIALLY DEFERRED go on being so for what is applied after the freeze."""
    rows = run.main.execute(
        "SELECT n.nspname, c.conname FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace"
        " WHERE c.condeferred AND n.nspname = ANY (%s)", (list(shadow.work.values()),)).fetchall()
    for schema, name in rows:
        run.main.execute(sql.SQL("SET CONSTRAINTS {} DEFERRED").format(sql.Identifier(schema, name)))
