"""Tells the demo's tale, from an empty database to the proof."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psycopg

from rebuilder.cli.failures import interrupted, tell
from rebuilder.cli.output import Output, seconds, table
from rebuilder.cli.progress import watched
from rebuilder.demo import bank
from rebuilder.demo.place import database
from rebuilder.demo.proof import Differences, Evidence, compare
from rebuilder.demo.traffic import Orders, Traffic
from rebuilder.demo.watch import Watch
from rebuilder.errors import DefinitionError, RebuilderError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
BEFORE, AFTER = 1.5, 2.0
"""Seconds of traffic before the rebuild, to compare its waits with, and after it."""


def perform(*, events: int, writers: int, readers: int, json: bool, dsn: str | None, seed: int | None) -> int:
    """The whole demo; its exit code."""
    output = Output(json=json)
    try:
        for name, number in (("writers", writers), ("readers", readers)):
            if not 1 <= number <= bank.MOST_THREADS:
                raise DefinitionError(f"{name} is {number}; it must be from 1 to {bank.MOST_THREADS}.")
        past = bank.Past.of(events, secrets.randbelow(2**31) if seed is None else seed)
        with _interruptible():
            evidence = _demonstrate(past, writers=writers, readers=readers, dsn=dsn, output=output)
    except KeyboardInterrupt:
        return interrupted(output)
    except (RebuilderError, psycopg.Error) as error:
        return tell(output, error)
    output.data(evidence.to_json(), lambda: _told(evidence))
    return 0 if evidence.proved else 1


def _demonstrate(past: bank.Past, *, writers: int, readers: int, dsn: str | None, output: Output) -> Evidence:
    started = time.monotonic()
    output.say(f"seed {past.seed}")
    with database(dsn) as conninfo, psycopg.connect(
            conninfo, autocommit=True, application_name="bank: founder") as connection:
        server = f"PostgreSQL {connection.info.parameter_status('server_version')}"
        output.say(f"{server}, database {connection.info.dbname}")
        application = bank.application(conninfo)
        application.install()
        began = time.monotonic()
        bank.found_bank(connection, past)
        output.say(f"a bank with {past.events:,} events of {past.accounts:,} accounts, made in "
                   f"{seconds(time.monotonic() - began)}")
        wrong = compare(connection)
        output.say(f"its read model is wrong: {wrong.describe()}{_example(wrong)}")
        with (Traffic(Orders("writer", conninfo, writers, past.open, past.seed)) as writing,
              Traffic(Orders("reader", conninfo, readers, past.open, past.seed)) as reading):
            writing.wait_until_at_work()
            reading.wait_until_at_work()
            output.say(f"{writers} writers and {readers} readers are at work; the rebuild begins in {BEFORE:g} s")
            time.sleep(BEFORE)
            with watched(output, bank.PROJECTION) as shown:
                watch = Watch(shown)
                report = application.rebuild(bank.PROJECTION, note="demo", observer=watch)
                moments = watch.moments()
            took = moments.ended - moments.began
            output.say(f"cut over after {seconds(took)}: {report.events_applied:,} events, "
                       f"{report.events_applied / took:,.0f} a second, fence held {_ms(report.fence_held_seconds)}")
            at_cut_over = compare(connection)
            output.say(f"under traffic: {at_cut_over.describe()}")
            time.sleep(AFTER)
            writes, reads = writing.end(), reading.end()
        at_end = compare(connection)
        output.say(f"after more writes: {at_end.describe()}")
    return Evidence(past=past, server=server, wrong=wrong, report=report, moments=moments, at_cut_over=at_cut_over,
                    at_end=at_end, reads=reads, writes=writes, fence_cap=application.settings.fence_hold,
                    seconds=time.monotonic() - started)


def _example(wrong: Differences) -> str:
    for account, in_live, in_log in wrong.sample:
        if in_live is not None and in_log is not None:
            return f" (account {account} shows {in_live / 100:,.2f}, and has {in_log / 100:,.2f})"
    return ""


def _told(evidence: Evidence) -> str:
    """The proof for people."""
    claims = table(("held", "claim", "found"),
                   [("yes" if claim.held else "NO", claim.text, claim.found) for claim in evidence.claims()])
    numbers = ("count", "p50", "p99", "longest")
    waits = table(("waits in ms", *numbers), [
        (f"{who}, {period}", summary.count, *(f"{getattr(summary, name):.1f}" for name in numbers[1:]))
        for who, periods in evidence.waits().items() for period, summary in periods.items()], right=numbers)
    verdict = "PROVED" if evidence.proved else "NOT PROVED"
    return (f"\n{claims}\n\n{waits}\n\n{verdict}: {evidence.past.events:,} events rebuilt in "
            f"{seconds(evidence.moments.ended - evidence.moments.began)}, fence held "
            f"{_ms(evidence.report.fence_held_seconds)}; {seconds(evidence.seconds)} in all; seed "
            f"{evidence.past.seed}")


def _ms(value: float) -> str:
    return f"{value * 1000:.1f} ms"


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does, and a second one does not cut the way out short."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's, and its business
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    # One that the parent ignores (nohup, a background job of a shell) stays ignored.
    before = {each: signal.getsignal(each) for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
