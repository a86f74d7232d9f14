"""Runs the bookkeeping's migrations: online on the connection it is given, offline as SQL text."""

from __future__ import annotations

import os

import sqlalchemy
from alembic import context

config = context.config
schema = config.attributes.get("schema") or config.get_main_option("schema") or "rebuilder"


def run(**options: object) -> None:
    context.configure(version_table_schema=schema, version_table="alembic_version", **options)
    with context.begin_transaction():
        context.run_migrations(schema=schema)


if context.is_offline_mode():
    quoted = sqlalchemy.sql.quoted_name(schema, quote=True).replace('"', '""')
    context.configure(dialect_name="postgresql", literal_binds=True, version_table_schema=schema,
                      version_table="alembic_version")
    with context.begin_transaction():
        # alembic writes the version table first, so the schema has to be there before any migration.
        context.get_context().impl.static_output(f'CREATE SCHEMA IF NOT EXISTS "{quoted}";')
        context.run_migrations(schema=schema)
elif connection := config.attributes.get("connection"):
    run(connection=connection)
else:
    url = os.environ.get("REBUILDER_DSN") or config.get_main_option("sqlalchemy.url")
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
    with engine.begin() as opened:
        run(connection=opened)
