"""Which PostgreSQL the tests run on, started once per run and shared by all workers."""

import atexit
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import psycopg
import pytest

from tests import servers

COMPARISONS: dict[str, Callable[[int, int], bool]] = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}

dsn_key = pytest.StashKey[str]()
version_key = pytest.StashKey[int]()
server_key = pytest.StashKey[servers.Server]()
missing_key = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rebuilder")
    group.addoption(
        "--dsn",
        default=os.environ.get("REBUILDER_TEST_DSN"),
        help="maintenance database of a running server, as a superuser [REBUILDER_TEST_DSN]",
    )
    group.addoption(
        "--server",
        default=os.environ.get("REBUILDER_TEST_SERVER", "auto"),
        choices=["auto", "embedded", "testcontainers", *servers.RELEASES],
        help="the server to start: a container where Docker answers, else the embedded one (auto); a major version "
        "(from npm) [REBUILDER_TEST_SERVER]",
    )


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        _remember(config, worker["rebuilder_dsn"], worker["rebuilder_version"], worker["rebuilder_missing"])
    elif not (config.option.collectonly or config.option.help or config.option.version):
        _start(config)


def _start(config: pytest.Config) -> None:
    image = os.environ.get("REBUILDER_TEST_IMAGE", "postgres:18")
    try:
        server = servers.choose(dsn=config.option.dsn, kind=config.option.server, image=image)
    except servers.NoServer as error:
        # A developer may still run what needs no server; CI must not pass without one, nor a run that named its own.
        if os.environ.get("CI") or config.option.server != "auto":
            pytest.exit(f"no PostgreSQL to test on: {error}", returncode=3)
        _remember(config, None, None, str(error))
        return
    config.stash[server_key] = server
    atexit.register(server.stop)  # for an end that skips pytest_unconfigure
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop as Ctrl-C does, so that the server is stopped
    try:
        with psycopg.connect(server.dsn, connect_timeout=10) as connection:
            version = connection.info.server_version
    except psycopg.Error as error:
        server.stop()
        pytest.exit(f"the PostgreSQL to test on ({server.origin}) does not answer: {error}", returncode=3)
    _remember(config, server.dsn, version, None)


def _remember(config: pytest.Config, dsn: str | None, version: int | None, missing: str | None) -> None:
    if missing is not None:
        config.stash[missing_key] = missing
    if dsn is not None and version is not None:
        config.stash[dsn_key] = dsn
        config.stash[version_key] = version


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the controller's server to a worker of xdist."""
    stash = node.config.stash
    node.workerinput["rebuilder_dsn"] = stash.get(dsn_key, None)
    node.workerinput["rebuilder_version"] = stash.get(version_key, None)
    node.workerinput["rebuilder_missing"] = stash.get(missing_key, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(server_key, None)
    if server is not None:
        server.stop()
        atexit.unregister(server.stop)


def pytest_report_header(config: pytest.Config) -> str | None:
    if missing_key in config.stash:
        return f"PostgreSQL: none ({config.stash[missing_key]}); tests that need one are skipped"
    server = config.stash.get(server_key, None)
    return f"PostgreSQL: {_version_text(config.stash[version_key])}, {server.origin}" if server else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("pg"):
        (condition,) = marker.args
        version = item.config.stash.get(version_key, None)
        if version is None:
            pytest.skip(f"needs PostgreSQL {condition}, and there is none")
        if not satisfies(version // 10_000, condition):
            pytest.skip(f"needs PostgreSQL {condition}, this is {_version_text(version)}")


def satisfies(major: int, condition: str) -> bool:
    """Whether a major version meets a condition such as ">= 15" or ">= 15, < 18"."""
    for part in condition.split(","):
        operator, _, number = part.strip().partition(" ")
        if operator not in COMPARISONS or not number.strip().isdecimal():
            msg = f"not a condition on a PostgreSQL version: {condition!r} (as in '>= 15')"
            raise ValueError(msg)
        if not COMPARISONS[operator](major, int(number)):
            return False
    return True


def _version_text(version: int) -> str:
    return f"{version // 10_000}.{version % 10_000}"


@pytest.fixture(scope="session")
def admin_dsn(pytestconfig: pytest.Config) -> str:
    """The server's maintenance database, as a superuser."""
    if missing_key in pytestconfig.stash:
        pytest.skip(f"no PostgreSQL: {pytestconfig.stash[missing_key]}")
    return pytestconfig.stash[dsn_key]


@pytest.fixture(scope="session")
def server_version(pytestconfig: pytest.Config, admin_dsn: str) -> int:
    """As `server_version_num` gives it: 180004."""
    return pytestconfig.stash[version_key]


@pytest.fixture
def private_server(pytestconfig: pytest.Config, afterwards: ExitStack) -> Callable[..., servers.LocalServer]:
    """Start servers for this test alone, which it may crash, stop or configure: `private_server(wal_level="minimal")`.

    With fsync, of the major version under test where `--server` names one.
    """
    kind = pytestconfig.option.server

    def start(*, durable: bool = True, **settings: str) -> servers.LocalServer:
        installation = servers.released(kind) if kind in servers.RELEASES else servers.embedded()
        server = servers.LocalServer(installation, durable=durable, settings=settings)
        afterwards.callback(server.stop)
        return server

    return start
