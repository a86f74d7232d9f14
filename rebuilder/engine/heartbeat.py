"""The heartbeat: progress that others see while the main transaction is open."""

from __future__ import annotations

import threading
import time

from rebuilder import errors
from rebuilder.engine.run import Run


class Heartbeat:
    """Writes a run's progress every few seconds, and hears of a cancel asked for elsewhere."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="rebuilder heartbeat", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the last write."""
        self._end.set()
        self._thread.join()

    def _beat(self) -> None:
        run = self._run
        missed = 0
        while not self._end.wait(run.settings.heartbeat if not run.stop.requested else 0.25):
            try:
                if run.ledger.progress(run.ticket, run.progress_now()):
                    run.stop.request("rebuilder cancel")
                elif run.stop.requested or self._late():
                    run.cancel_statement()
                missed = 0
            except errors.RebuilderError as error:
                missed += 1
                if missed == 3:
                    run.warnings.append(f"The heartbeat could not be written: {error.message}")
                if run.ledger.connection.closed:
                    run.lost = error
                    run.cancel_statement()
                    return

    def _late(self) -> bool:
        deadline = self._run.options.deadline
        return deadline is not None and time.monotonic() - self._run.started > deadline
