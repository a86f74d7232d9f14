"""SIGINT and SIGTERM during a run: the first asks it to stop, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rebuilder.cli.failures import CANCELLED
from rebuilder.engine.stop import StopToken

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping(say: Callable[[str], None], what: str) -> Iterator[StopToken]:
    """A stop token that signals set.

    Signals are read by a thread, from the interpreter's wake-up descriptor: the main thread may be inside libpq, where
    no handler runs, or inside the token's own lock, which a handler would wait for forever.
    """
    stop = StopToken()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    # One that the parent ignores (nohup, a background job of a shell) stays ignored.
    heard = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    wake_up = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {each: signal.signal(each, lambda *_: None) for each in heard}
    watch = threading.Thread(target=_watch, args=(reader, stop, say, what), name="rebuilder signals", daemon=True)
    watch.start()
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(wake_up)
        writer.close()
        watch.join()
        reader.close()


def _watch(reader: socket.socket, stop: StopToken, say: Callable[[str], None], what: str) -> None:
    asked = False
    while received := reader.recv(16):
        for number in received:
            if number not in _SIGNALS:
                continue
            name = signal.Signals(number).name
            if asked:
                _end_at_once(name)
            asked = True
            say(f"{name}: {what} stops at its next statement and rolls back. A second signal ends it at once.")
            # In a thread of its own: cancelling a statement waits for the server, and the second signal must not.
            threading.Thread(target=stop.request, args=(name,), daemon=True).start()


def _end_at_once(name: str) -> None:
    # Not by way of sys.stderr, whose lock the main thread may hold; a bar may have hidden the cursor.
    show_cursor = "\x1b[?25h" if os.isatty(2) else ""
    text = (f"{show_cursor}\n{name} again: ended at once. The server rolls back; the next run or `rebuilder cleanup` "
            "closes the ticket.\n")
    try:
        os.write(2, text.encode())
    finally:
        os._exit(CANCELLED)
