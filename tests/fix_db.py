"""A database for each test, connections to it, and roles."""

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from tests import servers


class Connect(Protocol):
    """`connect(dsn=None, **keywords)`: a connection to the test's database, closed when the test ends."""

    def __call__(self, dsn: str | None = None, **keywords: Any) -> psycopg.Connection[Any]: ...


@dataclass(frozen=True)
class Role:
    """A login role of one test."""

    name: str
    password: str

    def dsn(self, dsn: str) -> str:
        """The same database, as this role."""
        return make_conninfo(dsn, user=self.name, password=self.password)


# --- databases -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def admin(admin_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The worker's own connection to the maintenance database, in autocommit."""
    with psycopg.connect(admin_dsn, autocommit=True, application_name="tests: admin") as connection:
        yield connection


@pytest.fixture(scope="session")
def bare_template(admin: psycopg.Connection[Any], worker_id: str) -> Iterator[str]:
    """An empty database, in which nothing is installed."""
    # template0 never has a connection that CREATE DATABASE would wait for, and is clean on any server.
    yield from _template(admin, "bare", worker_id)


@pytest.fixture(scope="session")
def template(admin: psycopg.Connection[Any], admin_dsn: str, worker_id: str) -> Iterator[str]:
    """A database with the bookkeeping installed, to be cloned for each test."""
    # Here and not at the top: what needs no bookkeeping can be tested while the store is broken.
    from rebuilder.store.install import install

    yield from _template(
        admin, "installed", worker_id, prepare=lambda name: install(make_conninfo(admin_dsn, dbname=name))
    )


def _template(
    admin: psycopg.Connection[Any], kind: str, worker: str, prepare: Callable[[str], None] | None = None
) -> Iterator[str]:
    name = f"rebuilder_{kind}_{worker}_{uuid.uuid4().hex[:8]}"
    admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name)))
    try:
        if prepare is not None:
            prepare(name)
        # Not even autovacuum enters it then, so that a clone never waits.
        admin.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        yield name
    finally:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def make_database(
    admin: psycopg.Connection[Any], admin_dsn: str, roles: list[Role], afterwards: ExitStack
) -> Callable[[str], str]:
    """Clone a template into a database of this test: `make_database(template) -> dsn`."""
    # `roles` is asked for so that roles are dropped after the databases, when nothing depends on them any more.

    def make(template: str) -> str:
        name = f"rebuilder_test_{uuid.uuid4().hex[:12]}"
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        afterwards.callback(_drop_database, admin, admin_dsn, name)
        return make_conninfo(admin_dsn, dbname=name)

    return make


@pytest.fixture
def dsn(make_database: Callable[[str], str], template: str) -> str:
    """A database of this test's own, with the bookkeeping installed; the role is a superuser."""
    return make_database(template)


@pytest.fixture
def bare_dsn(make_database: Callable[[str], str], bare_template: str) -> str:
    """A database of this test's own, empty: `rebuilder install` has not been run."""
    return make_database(bare_template)


def _drop_database(admin: psycopg.Connection[Any], admin_dsn: str, name: str) -> None:
    """Drop it with all that FORCE alone would stumble on: prepared transactions, replication slots."""
    prepared = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall()
    if prepared:
        with psycopg.connect(make_conninfo(admin_dsn, dbname=name), autocommit=True) as connection:
            for (gid,) in prepared:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    admin.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE database = %s AND active", [name]
    )
    admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name])
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def url(dsn: str) -> str:
    """The same database as a URL, for what takes nothing else (SQLAlchemy: put `+psycopg` behind `postgresql`)."""
    values = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    user, password = quote(values.pop("user"), safe=""), values.pop("password", None)
    account = user if password is None else f"{user}:{quote(password, safe='')}"
    # The host goes into the query: a socket's folder has no place before the slash.
    return f"postgresql://{account}@/{quote(values.pop('dbname'), safe='')}?{urlencode(values)}"


# --- connections -----------------------------------------------------------------------------------------------------


@pytest.fixture
def connect(request: pytest.FixtureRequest, admin: psycopg.Connection[Any], spawn: object) -> Iterator[Connect]:
    """Open connections that are closed when the test ends: `connect(dsn=None, autocommit=False, user=…, …)`.

    Without a DSN: to the test's own database. One that is still in a statement then, waiting for a lock in some thread,
    is terminated first; nobody else's is touched.
    """
    # `spawn` is asked for so that threads are joined after the connections that they wait for are gone.
    opened: list[tuple[psycopg.Connection[Any], int, Any]] = []

    def open_connection(dsn: str | None = None, **keywords: Any) -> psycopg.Connection[Any]:
        target = request.getfixturevalue("dsn") if dsn is None else dsn
        connection: psycopg.Connection[Any] = psycopg.connect(target, **keywords)
        pid = connection.info.backend_pid
        # Pids come back: who started when tells ours from a later one. (None: not a backend of the shared server.)
        born = admin.execute(
            "SELECT backend_start FROM pg_stat_activity WHERE pid = %s AND datname = %s", [pid, connection.info.dbname]
        ).fetchone()
        opened.append((connection, pid, born and born[0]))
        return connection

    yield open_connection
    for connection, pid, born in opened:
        if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s",
                [pid, born],
            )
    for connection, _, _ in opened:
        connection.close()


# --- roles -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def roles(admin: psycopg.Connection[Any], afterwards: ExitStack) -> list[Role]:
    """The roles that this test has made; dropped when its databases are gone."""
    made: list[Role] = []

    def drop() -> None:
        for role in reversed(made):
            # What is left to it then are grants on shared objects: its databases are gone.
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(role.name)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role.name)))

    afterwards.callback(drop)
    return made


@pytest.fixture
def role(admin: psycopg.Connection[Any], roles: list[Role]) -> Callable[..., Role]:
    """Make a login role that this test alone knows: `role("CREATEDB", hint="owner") -> Role`."""

    def make(*attributes: str, hint: str = "role") -> Role:
        made = Role(f"rebuilder_{hint}_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex)
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN {} PASSWORD {}").format(
                sql.Identifier(made.name),
                sql.SQL(" ").join(map(sql.SQL, attributes)),
                sql.Literal(made.password),
            )
        )
        roles.append(made)
        return made

    return make


# --- pg_dump ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def pg_dump() -> Callable[..., str]:
    """`pg_dump(dsn, "--schema-only", …) -> text`, by the embedded wheel: it reads servers up to its own 18."""
    installation = servers.embedded()

    def dump(dsn: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(installation.root / "bin" / "pg_dump"), "--no-password", *arguments, "--dbname", dsn],
            check=False,
            capture_output=True,
            text=True,
            env=installation.environment(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return dump
