"""How to connect: from whatever an application has."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import conninfo as libpq
from psycopg_pool import ConnectionPool
from sqlalchemy import Engine

from rebuilder.errors import DefinitionError

_SQLALCHEMY_NAMES = {"database": "dbname", "username": "user"}


def conninfo_of(source: Any) -> str:
    """The libpq conninfo of a DSN, a psycopg pool, or a SQLAlchemy engine (asynchronous ones too).

    Raises :class:`~rebuilder.errors.DefinitionError` for anything else.
    """
    engine = getattr(source, "sync_engine", source)
    if isinstance(engine, Engine):
        if engine.dialect.name != "postgresql":
            raise DefinitionError(f"The SQLAlchemy engine speaks {engine.dialect.name}; rebuilder works on PostgreSQL.")
        _, given = engine.dialect.create_connect_args(engine.url)
        return libpq.make_conninfo("", **{_SQLALCHEMY_NAMES.get(key, key): value for key, value in given.items()
                                          if isinstance(value, str | int) and not isinstance(value, bool)})
    if isinstance(source, ConnectionPool):
        if callable(source.conninfo):
            raise DefinitionError("The pool makes its conninfo by a function, so rebuilder can't borrow it.",
                                  hint="give Rebuilder the DSN as text")
        kwargs = source.kwargs if isinstance(source.kwargs, dict) else {}
        keys = {key: value for key, value in kwargs.items() if key in _LIBPQ}
        return libpq.make_conninfo(str(source.conninfo), **keys)
    if isinstance(source, str):
        # SQLAlchemy writes the driver into the scheme; libpq does not know that.
        scheme, separator, rest = source.partition("://")
        text = f"postgresql://{rest}" if separator and scheme.startswith("postgresql+") else source
        try:
            libpq.conninfo_to_dict(text)
        except (psycopg.Error, ValueError):
            # The text may hold a password, and libpq repeats it: not even a traceback may show that.
            raise DefinitionError("The DSN is not one that libpq understands.",
                                  hint="write it as postgresql://user@host/database, or host=... dbname=...") from None
        return text
    raise DefinitionError(f"Rebuilder takes a DSN, a psycopg ConnectionPool or a SQLAlchemy Engine, not a "
                          f"{type(source).__name__}.")


_LIBPQ = {"host", "hostaddr", "port", "dbname", "user", "password", "passfile", "sslmode", "sslcert", "sslkey",
          "sslrootcert", "options", "service", "target_session_attrs", "connect_timeout", "channel_binding",
          "gssencmode"}
