"""A rebuild without the engine: shadow, freeze copy, fence and swap, driven by a blueprint alone.

The "replay" copies live's own rows, so that whatever differs afterwards was lost or invented by the catalog.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from rebuilder.catalog import (
    CatalogBlueprint,
    LiveTable,
    current_closure,
    current_fingerprint,
    current_grants,
    generated_keys,
    hand_over_sequences,
    preflight,
    read_blueprint,
    restore_positions,
    shadow_positions,
)

MODES = (
    "AccessShareLock", "RowShareLock", "RowExclusiveLock", "ShareUpdateExclusiveLock", "ShareLock",
    "ShareRowExclusiveLock", "ExclusiveLock", "AccessExclusiveLock",
)  # fmt: skip
FRESH = "rebuilder_fresh"

Replay = Callable[["Swap", LiveTable], None]


def everything(major: int, roles: dict[str, str]) -> str:
    """everything.sql for this server, with the names of the roles put in."""
    lines: list[str] = []
    wanted = True
    for line in Path(__file__).with_name("everything.sql").read_text().splitlines():
        if line.startswith("-- from "):
            wanted = major >= int(line.split()[2])
        elif line == "-- everywhere":
            wanted = True
        elif wanted:
            lines.append(line)
    text = "\n".join(lines)
    for name, role in roles.items():
        text = text.replace(f':"{name}"', f'"{role}"')
    return text


class Swap:
    """One run: each step a method, in the order in which the engine takes them."""

    def __init__(self, dsn: str, relations: Sequence[str], run: str = "1", **options: Any) -> None:
        self.second = psycopg.connect(dsn, autocommit=True)
        self.main = psycopg.connect(dsn)
        self.blueprint: CatalogBlueprint = read_blueprint(self.second, relations, run_id=run, **options)
        schemas = sorted({table.schema for table in self.blueprint.tables})
        self.work = {schema: f"rebuilder_work_{run}_{number}" for number, schema in enumerate(schemas)}
        self.retired = {schema: f"rebuilder_retired_{run}_{number}" for number, schema in enumerate(schemas)}

    def close(self) -> None:
        self.main.close()
        self.second.close()

    def execute(self, statements: Sequence[sql.Composable]) -> None:
        for statement in statements:
            self.main.execute(sql.Composed([statement]))

    def build(self) -> None:
        """Schemas and the shadow, keys included."""
        for schema in (*self.work.values(), *self.retired.values()):
            self.main.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        path = sql.SQL(", ").join(map(sql.Identifier, (*self.work.values(), "public")))
        self.main.execute(sql.SQL("SET LOCAL search_path = {}").format(path))
        for table in self.blueprint.tables:
            self.execute(self.blueprint.create(table, self.work, table.name))
            self.execute(self.blueprint.keys(table, self.work))

    def shadow(self, table: LiveTable, name: str | None = None) -> sql.Identifier:
        return sql.Identifier(self.work[table.schema], name or table.name)

    def copy(self, source: sql.Identifier, target: sql.Identifier, columns: Sequence[str], *, freeze: bool) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        out = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(names, source)
        into = sql.SQL("COPY {} ({}) FROM STDIN" + (" (FREEZE)" if freeze else "")).format(target, names)
        with self.main.cursor() as cursor:
            with cursor.copy(out) as rows:
                data = b"".join(bytes(row) for row in rows)
            with cursor.copy(into) as copy:
                copy.write(data)

    def replay(self, table: LiveTable) -> None:
        """Live's rows, through the second connection: main must not keep a lock on live."""
        names = sql.SQL(", ").join(map(sql.Identifier, table.stored))
        out = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(names, table.identifier)
        with self.second.transaction():
            self.second.execute("SET LOCAL row_security = off")
            with self.second.cursor() as cursor, cursor.copy(out) as rows:
                data = b"".join(bytes(row) for row in rows)
        into = sql.SQL("COPY {} ({}) FROM STDIN").format(self.shadow(table), names)
        with self.main.cursor() as cursor, cursor.copy(into) as copy:
            copy.write(data)

    def freeze(self) -> None:
        """Every shadow into a fresh table, which takes its name and gets all but the bare columns."""
        self.main.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in self.blueprint.tables:
            old, fresh = self.shadow(table), self.shadow(table, FRESH)
            self.execute(self.blueprint.create(table, self.work, FRESH))
            self.copy(old, fresh, table.stored, freeze=True)
            positions = shadow_positions(self.main, table, self.work)
            self.main.execute(sql.SQL("DROP TABLE {}").format(old))
            self.main.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(fresh, sql.Identifier(table.name)))
            self.execute(self.blueprint.keys(table, self.work))
            restore_positions(self.main, table, self.work, positions)
            self.execute(self.blueprint.indexes(table, self.work))
            self.main.execute(sql.SQL("ANALYZE {}").format(self.shadow(table)))
            self.execute(self.blueprint.dress(table, self.work))

    def fence(self, *, keys_owed: bool = False) -> None:
        for lock in self.blueprint.locks:
            if not (keys_owed and lock.role == "referred"):
                self.main.execute(lock.take)

    def swap(self, *, keys_owed: bool = False) -> None:
        assert current_fingerprint(self.main, self.blueprint) == self.blueprint.fingerprint
        assert current_closure(self.main, self.blueprint) == self.blueprint.closure
        hand_over_sequences(self.main, self.blueprint, self.work)
        self.execute(self.blueprint.swap(self.work, self.retired, keys_owed=keys_owed))
        assert current_grants(self.main, self.blueprint) == self.blueprint.grants

    def finish(self, *, keys_owed: bool = False) -> None:
        """Commit, settle what is owed, and drop what was retired: nothing may depend on it any more."""
        self.main.commit()
        for owed in self.blueprint.owed(self.retired, keys_owed=keys_owed):
            self.second.execute(owed.statement)
        names = [sql.Identifier(self.retired[table.schema], table.name) for table in self.blueprint.tables]
        self.second.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(names)))
        for schema in (*self.work.values(), *self.retired.values()):  # no CASCADE: they must be empty
            self.second.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))


@contextmanager
def opened(dsn: str, relations: Sequence[str], run: str = "1", **options: Any) -> Iterator[Swap]:
    made = Swap(dsn, relations, run, **options)
    try:
        yield made
    finally:
        made.close()


def rebuild(
    dsn: str,
    relations: Sequence[str],
    run: str = "1",
    *,
    keys_owed: bool = False,
    allow: Sequence[str] = (),
    replay: Replay | None = None,
    **options: Any,
) -> CatalogBlueprint:
    """A whole run."""
    with opened(dsn, relations, run, **options) as swap:
        preflight(swap.blueprint, allow)
        swap.build()
        for table in swap.blueprint.tables:
            swap.replay(table) if replay is None else replay(swap, table)
        swap.freeze()
        generated_keys(swap.main, swap.blueprint, swap.work)
        swap.fence(keys_owed=keys_owed)
        swap.swap(keys_owed=keys_owed)
        swap.finish(keys_owed=keys_owed)
        return swap.blueprint


def held(connection: psycopg.Connection[Any]) -> dict[int, int]:
    """The strongest lock of our own on each relation of this database; an index counts as its table."""
    found: dict[int, int] = {}
    rows = connection.execute(
        """SELECT coalesce(i.indrelid, l.relation)::bigint, l.mode
           FROM pg_locks l LEFT JOIN pg_index i ON i.indexrelid = l.relation
           WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation >= 16384
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
    )
    for oid, mode in rows.fetchall():
        found[oid] = max(found.get(oid, -1), MODES.index(mode))
    return found


def schema_of(text: str) -> tuple[list[str], list[str]]:
    """A schema-only dump as (statements but grants, grants sorted with who granted)."""
    lines: list[str] = []
    grants: list[str] = []
    grantor = ""
    for line in text.splitlines():
        if line.startswith("SET SESSION AUTHORIZATION"):
            grantor = line
        elif line.startswith("RESET SESSION AUTHORIZATION"):
            grantor = ""
        elif line.startswith(("GRANT ", "REVOKE ")):
            grants.append(f"{line} {grantor}")
        elif line and not line.startswith("\\"):  # \restrict has a random word
            lines.append(line)
    return lines, sorted(grants)


UNSTABLE = {
    "oid",
    "index",
    "table",
    "row_type",
    "array_type",
    "rows",
    "bytes",
    "number",
    "type_oid",
    "head",
    "referred",
    "referred_columns",
}


def facts_of(dsn: str, relations: Sequence[str]) -> list[str]:
    """What the catalog says of the tables, a line for each fact; numbers that belong to one incarnation left out."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        blueprint = read_blueprint(connection, relations, run_id="facts")
    lines: list[str] = []
    for table in blueprint.tables:
        facts = asdict(blueprint.facts[table.oid])
        # Numbers of columns close up over those that were dropped.
        names = {column["number"]: column["name"] for column in facts["columns"]}
        lines += _lines(table.label, facts, names)
    return lines


def _lines(path: str, value: Any, names: dict[int, str]) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "acl":
                yield f"{path}.acl = {_explicit(item or ())}"
            elif key == "columns" and all(isinstance(number, int) for number in item):
                yield f"{path}.{key} = {sorted(names.get(number, str(number)) for number in item)}"
            elif key not in UNSTABLE:
                yield from _lines(f"{path}.{key}", item, names)
    elif isinstance(value, tuple | list) and value and isinstance(value[0], dict):
        for item in value:
            yield from _lines(f"{path}[{item.get('name')}]", item, names)
    else:
        yield f"{path} = {value!r}"


def _explicit(acl: Sequence[tuple[str, str, str, bool]]) -> list[tuple[str, str, str, bool]]:
    """Grants, without the owner's own if they are what an owner has anyway: NULL and that mean the same."""
    own = {privilege for grantor, grantee, privilege, _ in acl if grantor == grantee}
    whole = own == {"SELECT", "UPDATE", "USAGE"} or {"SELECT", "INSERT", "DELETE", "TRUNCATE", "TRIGGER"} <= own
    return sorted(entry for entry in acl if not (whole and entry[0] == entry[1]))
