"""How a run is asked to stop, from another thread, a signal, another terminal, or a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopToken:
    """Set once; wakes whoever waits on it and runs the callbacks that cancel a running statement."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self.why = ""

    def request(self, why: str = "cancelled by the caller") -> None:
        """Ask for the end of the run."""
        if not self._event.is_set():
            self.why = why
            self._event.set()
        for callback in list(self._callbacks):
            callback()

    @property
    def requested(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long; True as soon as the end is asked for."""
        return self._event.wait(seconds)

    def on_request(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Run ``callback`` when the end is asked for; returns the call that takes it back."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)
