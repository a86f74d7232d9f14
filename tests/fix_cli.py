"""The installed command in a subprocess, in a folder of its own with an application in it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.fix_threads import Spawn, wait_until

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(sys.executable).with_name("rebuilder")

# The bank, with two event types more: one that no handler survives, one that takes its time.
APPLICATION = """
import os
import time

from tests.bank import make_handlers, make_projection, make_rebuilder

handlers = make_handlers()


@handlers.on("Poison")
def poison(event, target):
    raise ValueError("this event is poison")


@handlers.on("Slow")
def slow(event, target):
    target.fetch_one("SELECT pg_sleep(600)")


@handlers.on("Stuck")
def stuck(event, target):
    target.fetch_one("SELECT 1 AS stuck")
    time.sleep(600)


rebuilder = make_rebuilder(
    os.environ["BANK_DSN"],
    make_projection(handlers=handlers, version=int(os.environ.get("BANK_VERSION", "1"))),
    settings={"heartbeat": 0.2},
)
"""


class Running:
    """A command that runs; what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes], spawn: Spawn) -> None:
        self.process = process
        self._stdout, self._stderr = bytearray(), bytearray()
        self._readers: list[Future[None]] = [
            spawn(self._read, stream, kept)
            for stream, kept in ((process.stdout, self._stdout), (process.stderr, self._stderr)) if stream is not None
        ]

    @staticmethod
    def _read(stream: Any, kept: bytearray) -> None:
        with stream:
            while chunk := os.read(stream.fileno(), 65536):
                kept += chunk

    @property
    def stdout(self) -> str:
        return self._stdout.decode()

    @property
    def stderr(self) -> str:
        return self._stderr.decode()

    def says(self, text: str) -> None:
        """Wait until stderr has it."""
        wait_until(lambda: text in self.stderr, 30, f"{text!r} on stderr")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def done(self, timeout: float = 60) -> "Done":
        """Wait for its end."""
        code = self.process.wait(timeout)
        for reader in self._readers:
            reader.result(10)
        return Done(code, self.stdout, self.stderr)


class Done:
    """A command that has ended."""

    def __init__(self, code: int, stdout: str, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


class Cli:
    """`cli("rebuild", "account_balance", …)`: run it to its end; `cli.start(…)`: let it run."""

    def __init__(self, folder: Path, environment: Mapping[str, str], spawn: Spawn) -> None:
        self.folder = folder
        self.environment = dict(environment)
        self.program: Sequence[str] = (sys.executable, "-m", "rebuilder")
        self.started: list[subprocess.Popen[bytes]] = []
        self._spawn = spawn

    def __call__(self, *arguments: str, timeout: float = 60, **environment: str) -> Done:
        return self.start(*arguments, **environment).done(timeout)

    def start(self, *arguments: str, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE,
              **environment: str) -> Running:
        process = subprocess.Popen(
            [*self.program, *arguments], cwd=self.folder, env={**self.environment, **environment},
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        self.started.append(process)
        return Running(process, self._spawn)


@pytest.fixture
def make_cli(tmp_path: Path, spawn: Spawn) -> Iterator[Callable[[str], Cli]]:
    """Make a `Cli` for a database: the application is found by pyproject.toml and the DSN is its own."""
    made: list[Cli] = []

    def make(dsn: str) -> Cli:
        (tmp_path / "shop.py").write_text(APPLICATION)
        (tmp_path / "pyproject.toml").write_text('[tool.rebuilder]\napp = "shop:rebuilder"\n')
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "BANK_DSN": dsn, "COLUMNS": "200"}
        made.append(Cli(tmp_path, environment, spawn))
        return made[-1]

    yield make
    for cli in made:
        for process in cli.started:
            if process.poll() is None:
                process.kill()
                process.wait(10)


@pytest.fixture
def cli(make_cli: Callable[[str], Cli], dsn: str) -> Cli:
    """The command, on the test's own database."""
    return make_cli(dsn)
