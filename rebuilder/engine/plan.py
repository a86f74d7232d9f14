"""What a rebuild would do, before it does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rebuilder import errors
from rebuilder.catalog import preflight, read_blueprint
from rebuilder.catalog.blueprint import Verdict
from rebuilder.domain.batch_sql import BatchSql
from rebuilder.domain.blocker import Blocker
from rebuilder.engine import shadow
from rebuilder.engine.in_the_way import holders
from rebuilder.engine.price import Price, check_price, price_of
from rebuilder.engine.run import Run
from rebuilder.engine.schemas import RETIRED, WORK, run_id, stand_ins
from rebuilder.engine.state_lock import connect_run
from rebuilder.eventlog import ReadPlan, Selection
from rebuilder.store.sessions import translated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLock:
    """One lock of the fence, in order."""

    kind: str
    role: str
    object: str
    statement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would run. ``refused`` is why it would not; ``build`` and ``swap`` are statements in order."""

    projection: str
    version: int
    live_version: int | None
    tables: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    build: tuple[str, ...]
    locks: tuple[PlannedLock, ...]
    swap: tuple[str, ...]
    owed: tuple[str, ...]
    price: Price
    read: ReadPlan | None
    blockers: tuple[Blocker, ...]
    refused: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as strings, numbers, lists and objects."""
        return {
            "projection": self.projection, "version": self.version, "live_version": self.live_version,
            "tables": list(self.tables),
            "verdicts": [{"outcome": str(v.outcome), "kind": v.kind, "name": v.name, "table": v.table,
                          "reason": v.reason, "hint": v.hint} for v in self.verdicts],
            "build": list(self.build),
            "locks": [{"kind": lock.kind, "role": lock.role, "object": lock.object, "statement": lock.statement}
                      for lock in self.locks],
            "swap": list(self.swap), "owed": list(self.owed), "price": self.price.to_json(),
            "read": None if self.read is None else {
                "index_scan": self.read.index_scan, "indexes": list(self.read.indexes),
                "advice": list(self.read.advice)},
            "blockers": [blocker.to_json() for blocker in self.blockers], "refused": list(self.refused),
            "notes": list(self.notes),
        }


def make_plan(run: Run) -> Plan:
    """Read everything that a rebuild would read, change nothing, keep no lock."""
    try:
        connect_run(run)
        return _plan(run)
    finally:
        run.close()


def _plan(run: Run) -> Plan:
    refused: list[dict[str, Any]] = []
    with translated("planning the rebuild"):
        run.log = run.definition.open(run.reader)
        shadow.check_log(run)
        run.selection = Selection(types=run.projection.types, categories=tuple(run.projection.categories))
        connection = run.ledger.connection  # a plan has no heartbeat that uses it too
        run.blueprint = read_blueprint(connection, run.projection.tables, shape=run.projection.shape or None,
                                       run_id=run_id(run))
        state = run.books.run(connection, "read_state", projection=run.projection.name).fetchone()
    try:
        preflight(run.blueprint, run.options.allow)
        shadow.check_row_security(run, connection)
    except errors.RefusedError as error:
        refused.append(error.to_json())
    try:
        check_price(run)
    except errors.RefusedError as error:
        refused.append(error.to_json())
    live_version = state[1] if state else None
    if live_version is not None and live_version > run.projection.version and "downgrade" not in run.options.allow:
        refused.append({"error": "recipe-outdated", "message": f"Live was built with version {live_version}.",
                        "hint": "deploy the later code, or --allow downgrade"})
    possible = not any(error["error"] == "preflight" for error in refused)
    work, retired = stand_ins(run, WORK), stand_ins(run, RETIRED)

    def texts(statements: list[Any]) -> tuple[str, ...]:
        return tuple(statement.as_string(connection) for statement in statements)

    blueprint = run.blueprint
    build = [statement for table in blueprint.tables for part in (blueprint.create(table, work, table.name),
             blueprint.keys(table, work), blueprint.indexes(table, work), blueprint.dress(table, work))
             for statement in part] if possible else []
    read = run.log.read_plan(run.reader, run.selection) if run.selection.types else None
    return Plan(
        projection=run.projection.name, version=run.projection.version, live_version=live_version,
        tables=tuple(table.label for table in blueprint.tables), verdicts=tuple(blueprint.verdicts),
        build=texts(build),
        locks=tuple(PlannedLock(kind=str(lock.kind), role=lock.role, object=lock.label,
                                statement=lock.take.as_string(connection)) for lock in blueprint.locks),
        swap=texts(blueprint.swap(work, retired)) if possible else (),
        owed=tuple(f"{owed.kind} {owed.label}" for owed in blueprint.owed(retired)) if possible else (),
        price=price_of(run), read=read, blockers=tuple(holders(run)), refused=tuple(refused),
        notes=_notes(run))


def _notes(run: Run) -> tuple[str, ...]:
    """What a person must know of this kind of handlers."""
    if not isinstance(run.projection.handlers, BatchSql):
        return ()
    note = (f"DDL on {run.log.label} waits for the whole run, and every appender behind it: BatchSql reads the log in "
            "the main transaction, which keeps its lock on it")
    return (note,)
