"""Makes the bookkeeping schema by running its Alembic migrations, or prints them."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy
from psycopg import sql

from rebuilder.settings import Settings
from rebuilder.store.sessions import connect, translated

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: it is a third of the start of every command, and one needs it.

_ALEMBIC = threading.Lock()
"""Alembic keeps what it works on in globals of its own: one thread at a time. The advisory lock ends with its commit,
a moment before it has put them away.
"""


def _scripts() -> Path:
    """The migrations: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_alembic"
    return installed if installed.is_dir() else package.parent / "alembic"


def _config(schema: str, output: io.TextIOBase | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output)  # type: ignore[arg-type]
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.attributes["schema"] = schema
    return config


READY = "ready_"
"""What the names of ready-made schemas have behind ``rebuilder_work_`` and ``rebuilder_retired_``."""


def ready_schemas(count: int, role: str | None) -> list[sql.Composed]:
    """The statements that make so many pairs of work and retired schemas, for a role that may not create its own."""
    statements = []
    for number in range(1, count + 1):
        for kind in ("work", "retired"):
            name = sql.Identifier(f"rebuilder_{kind}_{READY}{number}")
            statements.append(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            if role is not None:
                statements.append(sql.SQL("GRANT USAGE, CREATE ON SCHEMA {} TO {}").format(name, sql.Identifier(role)))
    return statements


def install(conninfo: str, settings: Settings | None = None, *, work_schemas: int = 0, to: str | None = None) -> None:
    """Bring the bookkeeping of a database to this version of rebuilder; nothing to do is fine.

    ``work_schemas`` makes so many pairs of schemas for shadows and retired tables, and grants them to the role ``to``,
    which then needs no CREATE on the database: one pair for each live schema of each projection whose retired tables
    are kept at the same time.

    Raises :class:`~rebuilder.errors.MissingPrivilege` if the role may not create the schema.
    """
    from alembic import command

    schema = (settings or Settings()).schema
    with connect(conninfo, role="install") as connection:
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: connection,
                                          poolclass=sqlalchemy.pool.StaticPool, pool_reset_on_return=None)
        # SQLAlchemy rolls back when it gets to know a connection, so that comes first.
        with engine.connect() as wrapped, translated("installing the bookkeeping"):
            # One installer at a time: two deploys may start together.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s)::bigint)", (f"rebuilder install {schema}",))
            if connection.execute("SELECT to_regnamespace(%s)", (_quoted(schema, connection),)).fetchone() == (None,):
                connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            config = _config(schema)
            config.attributes["connection"] = wrapped
            with _ALEMBIC:
                command.upgrade(config, "head")
            for statement in ready_schemas(work_schemas, to):
                connection.execute(statement)
        connection.commit()


def _quoted(schema: str, connection: object) -> str:
    return sql.Identifier(schema).as_string(connection)  # type: ignore[arg-type]


def install_sql(settings: Settings | None = None, *, work_schemas: int = 0, to: str | None = None) -> str:
    """The same as SQL text, for a database administrator to run."""
    from alembic import command

    output = io.StringIO()
    with _ALEMBIC:
        command.upgrade(_config((settings or Settings()).schema, output), "head", sql=True)
    made = "".join(f"{statement.as_string()};\n\n" for statement in ready_schemas(work_schemas, to))
    return output.getvalue() + made
