"""Runs the bookkeeping's migrations: online on the connection it is given, offline as SQL text."""

from __future__ import annotations

import os

import sqlalchemy
from alembic import context

from rebuilder.store.conninfo import conninfo_of
from rebuilder.store.sessions import connect

config = context.config
schema = config.attributes.get("schema") or config.get_main_option("schema") or "rebuilder"


def run(**options: object) -> None:
    context.configure(version_table_schema=schema, version_table="alembic_version", **options)
    with context.begin_transaction():
        context.run_migrations(schema=schema)


if context.is_offline_mode():
    quoted = sqlalchemy.sql.quoted_name(schema, quote=True).replace('"', '""')
    # Named parameters: with the driver's own style every % in a name would be doubled.
    context.configure(dialect_name="postgresql", dialect_opts={"paramstyle": "named"}, literal_binds=True,
                      version_table_schema=schema, version_table="alembic_version")
    with context.begin_transaction():
        # alembic writes the version table first, so the schema has to be there before any migration.
        context.get_context().impl.static_output(f'CREATE SCHEMA IF NOT EXISTS "{quoted}";')
        context.run_migrations(schema=schema)
elif connection := config.attributes.get("connection"):
    run(connection=connection)
else:
    dsn = conninfo_of(os.environ.get("REBUILDER_DSN", ""))
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: connect(dsn, role="alembic"),
                                      poolclass=sqlalchemy.pool.NullPool)
    with engine.begin() as opened:
        opened.execute(sqlalchemy.schema.CreateSchema(schema, if_not_exists=True))
        run(connection=opened)
