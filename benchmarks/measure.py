"""A server and databases for the benchmarks, and what they find."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from rebuilder.store.install import install
from tests import servers
from tests.bank import Connection, make_schema


@dataclass(frozen=True, slots=True)
class Result:
    """One finding; `good` is False where a bound was set and missed."""

    text: str
    good: bool = True
    row: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.text if self.good else f"{self.text}   <-- NOT GOOD"


def bounded(what: str, ratio: float, *, least: float | None = None, most: float | None = None) -> Result:
    """A ratio that has to be at least or at most something."""
    bound = f"at least {least:g}" if least is not None else f"at most {most:g}"
    good = (least is None or ratio >= least) and (most is None or ratio <= most)
    return Result(f"{what}: {ratio:.2f} ({bound})", good, {"name": what, "ratio": ratio, "least": least, "most": most})


class Database:
    """A server that is stopped at the end, and databases on it that hold the bank."""

    def __init__(self, dsn: str | None) -> None:
        self._server = servers.choose(dsn=dsn, kind="embedded", image="")
        self._names: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None,
                 _trace: TracebackType | None) -> None:
        try:
            with psycopg.connect(self._server.dsn, autocommit=True) as admin:
                for name in self._names:
                    admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        finally:
            self._server.stop()

    def bank(self, fill: Callable[[Connection], object]) -> str:
        """A new database with the bank's tables, filled and analyzed; its DSN."""
        name = f"rebuilder_bench_{uuid.uuid4().hex[:10]}"
        with psycopg.connect(self._server.dsn, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name)))
        self._names.append(name)
        dsn = make_conninfo(self._server.dsn, dbname=name)
        install(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            make_schema(connection)
            fill(connection)
            connection.execute("VACUUM ANALYZE events")
        return dsn
