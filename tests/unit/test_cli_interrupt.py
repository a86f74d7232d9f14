"""Signals during a run."""

import os
import signal
import threading

import pytest

from rebuilder.cli.interrupt import stopping

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_asks_the_run_to_stop_and_says_so(number):
    said = []
    with stopping(said.append, "the rebuild") as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        assert stop.why == number.name
    (line,) = said
    assert line.startswith(f"{number.name}: the rebuild stops at its next statement and rolls back.")


def test_the_handlers_of_before_are_back_afterwards():
    before = [signal.getsignal(number) for number in SIGNALS]
    with stopping(print, "the rebuild"):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1
    assert "rebuilder signals" not in [thread.name for thread in threading.enumerate()]


def test_what_the_parent_ignores_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping(print, "the rebuild") as stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(10)
            assert stop.why == "SIGTERM"
    finally:
        signal.signal(signal.SIGINT, before)
