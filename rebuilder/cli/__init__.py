"""The command line. stdout is data, stderr is talk, the exit code says what became of it."""

from rebuilder.cli.main import main

__all__ = ["main"]
