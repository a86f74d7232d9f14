"""Step 2: the shadow tables, built from the catalog in work schemas of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from rebuilder import errors
from rebuilder.catalog import CatalogBlueprint, LiveTable, preflight, read_blueprint
from rebuilder.engine.applier import Applier
from rebuilder.engine.appliers import make_applier
from rebuilder.engine.apply_sql import lifter
from rebuilder.engine.parallel import check_workers
from rebuilder.engine.price import check_price
from rebuilder.engine.run import Run
from rebuilder.engine.schemas import RETIRED, WORK, provide, run_id, stand_ins
from rebuilder.eventlog import Selection
from rebuilder.sql import load
from rebuilder.store.sessions import Connection, translated

_QUERIES = load("queries")


@dataclass(slots=True)
class Shadow:
    """The tables being built: where they stand, and what applies events to them."""

    work: dict[str, str]
    retired: dict[str, str]
    applier: Applier
    xid: str = ""
    frozen_at: float | None = None
    freeze_cost: float = 0.0
    checked_at: float = 0.0
    tables: tuple[LiveTable, ...] = field(default=())

    def identifier(self, table: LiveTable) -> sql.Identifier:
        """The qualified name of a shadow table."""
        return sql.Identifier(self.work[table.schema], table.name)


def build_shadow(run: Run) -> Shadow:
    """Check log and tables, then create the shadow; refuses before anything is replayed."""
    read_definitions(run)
    check_price(run)
    shadow = create_shadow(run, run.main, run.blueprint)
    shadow.retired = provide(run, run.main, RETIRED)
    return shadow


def read_definitions(run: Run) -> None:
    """Log, blueprint, preflight: what is read and refused without a lock that stays."""
    with translated("reading the event log's definition"):
        run.log = run.definition.open(run.reader)
    check_log(run)
    check_workers(run)
    run.selection = Selection(types=run.projection.types, categories=tuple(run.projection.categories))
    with translated("reading the live tables' definition"), run.ledger.using() as connection:
        run.blueprint = read_blueprint(connection, run.projection.tables, shape=run.projection.shape or None,
                                       run_id=run_id(run))
        preflight(run.blueprint, run.options.allow)
        check_row_security(run, connection)
        _no_other_owner(run, connection)


def check_log(run: Run) -> None:
    """What the projection needs of the log."""
    columns, projection = run.definition.columns, run.projection
    if projection.upcasters is not None and columns.schema_version is None:
        raise errors.LogDefinitionError(
            f"Projection {projection.name!r} has upcasters, but the log's columns name no schema_version, so no event "
            "says which version it is.", hint="give Columns(schema_version=...)")
    if projection.categories and columns.category is None:
        raise errors.LogDefinitionError(
            f"Projection {projection.name!r} subscribes to categories, but the log's columns name none.",
            hint="give Columns(category=...), or leave categories out")


def check_row_security(run: Run, connection: Connection) -> None:
    """Refuse, before the replay, a live table of which this role does not see all rows to compare with."""
    for table in run.blueprint.tables:
        if connection.execute("SELECT row_security_active(%s::int8::oid)", (table.oid,)).fetchone() == (True,):
            raise errors.MissingPrivilege(
                f"Row security hides rows of {table.label} from role {run.server.user!r}, so live can't be compared "
                "with what a rebuild makes. Nothing was changed.",
                hint=f'ALTER ROLE "{run.server.user}" BYPASSRLS', table=table.label)


def _no_other_owner(run: Run, connection: Connection) -> None:
    """Two spellings of one table slip through the registry; the catalog knows better."""
    ours = {table.oid: table.label for table in run.blueprint.tables}
    for other in run.registry:
        if other.name == run.projection.name:
            continue
        for name in other.tables:
            row = connection.execute("SELECT to_regclass(%s)::oid::int8", (name,)).fetchone()
            if row and row[0] in ours:
                raise errors.DuplicateDefinition(
                    f"Table {ours[row[0]]} is filled by {run.projection.name!r} and by {other.name!r}: the rebuild of "
                    "one would drop the other's rows.", hint="make them one projection", table=ours[row[0]])


def create_shadow(run: Run, connection: Connection, blueprint: CatalogBlueprint) -> Shadow:
    """Create work schemas and shadow tables on ``connection``, and make unqualified names reach them."""
    work = provide(run, connection, WORK)
    for table in blueprint.tables:
        for statement in (*blueprint.create(table, work, table.name), *blueprint.keys(table, work)):
            connection.execute(statement)
    # Unqualified names of handlers hit the shadow; whatever else they name is found as before.
    connection.execute("SELECT set_config('search_path', %s || ', ' || current_setting('search_path'), true)",
                       (", ".join(work.values()),))
    tables = {name: sql.Identifier(work[table.schema], table.name)
              for name, table in zip(run.projection.tables, blueprint.tables, strict=True)}
    applier = make_applier(run, connection, tables, lifter(run.log, run.projection, _asker(run)))
    shadow = Shadow(work, stand_ins(run, RETIRED), applier, tables=blueprint.tables)
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    shadow.xid = row[0]
    return shadow


def _asker(run: Run) -> Any:
    """The read-only look into the database that upcasters get: a connection of its own, opened when first asked."""
    opened: list[Connection] = []

    def fetch_one(statement: Any, params: Any = None) -> tuple[Any, ...] | None:
        if not opened:
            opened.append(run.open("upcast", autocommit=False))
            opened[0].read_only = True
        try:
            return opened[0].execute(statement, params).fetchone()
        finally:
            opened[0].rollback()

    return fetch_one


def check_writes(run: Run, shadow: Shadow, *, fenced: bool = False) -> None:
    """Stop the run if a handler wrote, or locked, anything but the shadow, or ended the transaction.

    Deltas of pg_stat_xact_user_tables show written rows; locks show what leaves none (an UPDATE of 0 rows, TRUNCATE),
    but for the fence's own while it is held.
    """
    inside = [*shadow.work.values(), *shadow.retired.values(), run.settings.schema]
    row = run.main.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
    if row != (shadow.xid,):
        raise errors.WroteOutsideShadow(
            f"A handler of {run.projection.name!r} ended the rebuild's transaction (COMMIT or ROLLBACK).",
            hint="handlers write rows; they must not end transactions. `rebuilder cleanup` drops what is left")
    written = {name for _, name, _ in run.main.execute(_QUERIES["outside_writes"], {"inside": inside}).fetchall()}
    ours = {lock.oid for lock in run.blueprint.locks} | run.checkpoint_tables if fenced else set()
    locked = {name for oid, name, _ in run.main.execute(_QUERIES["outside_locks"], {"inside": inside}).fetchall()
              if oid not in ours}
    outside = sorted(written | locked)
    if not outside:
        return
    live = {_quoted(table): table.label for table in run.blueprint.tables}
    names = ", ".join(outside)
    if set(outside) & set(live):
        message = (f"A handler of {run.projection.name!r} wrote to the live table {names} instead of the shadow; all "
                   "of it was rolled back.")
        hint = "name tables without a schema, or through target.table(name)"
    else:
        message = (f"A handler of {run.projection.name!r} wrote to {names}, which the projection does not declare; all "
                   "of it was rolled back.")
        hint = "declare it in tables=[...], or write it elsewhere: a replay must not repeat side effects"
    raise errors.WroteOutsideShadow(message, hint=hint, tables=outside)


def _quoted(table: LiveTable) -> str:
    return ".".join(part if part.isidentifier() and part.islower() else '"' + part.replace('"', '""') + '"'
                    for part in (table.schema, table.name))
