"""Where shadow and retired tables stand: schemas made for the run, or ready-made ones.

A role without CREATE on the database uses schemas that ``install --work-schemas N`` has made. A ready-made schema is
free when it is empty; it is claimed by an advisory lock of the run's transaction, since other runs look for one too.
"""

from __future__ import annotations

from psycopg import sql

from rebuilder.engine.run import Run
from rebuilder.engine.state_lock import advisory_key
from rebuilder.errors import MissingPrivilege
from rebuilder.settings import ADVISORY_CLASS
from rebuilder.sql import load
from rebuilder.store.install import READY
from rebuilder.store.sessions import Connection

_QUERIES = load("queries")
WORK = "rebuilder_work_"
RETIRED = "rebuilder_retired_"


def run_id(run: Run) -> str:
    """What names of this run end in."""
    return run.ticket.hex[:10]


def stand_ins(run: Run, prefix: str) -> dict[str, str]:
    """A schema of the run for each live schema, by the names that it gets where the role may create schemas."""
    names = dict.fromkeys(table.schema for table in run.blueprint.tables)
    return {live: f"{prefix}{run_id(run)}" + (f"_{n}" if n else "") for n, live in enumerate(names)}


def provide(run: Run, connection: Connection, prefix: str) -> dict[str, str]:
    """The schemas themselves: created, or claimed from the ready-made ones.

    Raises :class:`~rebuilder.errors.MissingPrivilege` when there is neither the right nor a free schema.
    """
    schemas = stand_ins(run, prefix)
    if connection.execute("SELECT has_database_privilege(current_database(), 'CREATE')").fetchone() == (True,):
        for schema in schemas.values():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        return schemas
    ready = connection.execute(_QUERIES["ready_schemas"], {"prefix": f"{prefix}{READY}"}).fetchall()
    claimed: dict[str, str] = {}
    for live in schemas:
        found = next((name for (name,) in ready if name not in claimed.values() and _claim(connection, name)), None)
        if found is None:
            raise MissingPrivilege(
                f"Role {run.server.user!r} may not create schemas in database {run.server.database!r}, and no "
                f"ready-made schema {prefix}{READY}... is free: there is no place for the tables of schema {live!r}.",
                hint=f'GRANT CREATE ON DATABASE "{run.server.database}" TO "{run.server.user}", or let a role that may '
                     f'run `rebuilder install --work-schemas N --to "{run.server.user}"`; `rebuilder cleanup` frees '
                     "those of retired tables that are due")
        claimed[live] = found
    return claimed


def ready_made(schema: str) -> bool:
    """Whether a schema was made by ``install``, and so is not the run's to drop."""
    return schema.startswith((WORK + READY, RETIRED + READY))


def _claim(connection: Connection, name: str) -> bool:
    held = connection.execute("SELECT pg_try_advisory_xact_lock(%s, %s)",
                              (ADVISORY_CLASS, advisory_key(name, ""))).fetchone()
    # Whoever had it may have left a retired table in it since it was listed.
    empty = connection.execute(_QUERIES["schema_is_empty"], {"name": name}).fetchone()
    return held == (True,) and empty == (True,)
