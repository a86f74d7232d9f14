"""A TCP proxy before the server, so that "the connection was lost" is tested by losing it."""

import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Proxy:
    """Listens on loopback and passes each connection on to the server.

    `dsn` leads through it. `cut()` ends what is connected, `refuse()` and `accept()` close and open the door,
    `hold()` and `release()` stop passing bytes on without closing anything, as a network that has gone silent does;
    `mute()` stops only the server's answers.
    """

    def __init__(self, target: str) -> None:
        self._target = conninfo_to_dict(target)
        self._lock = threading.Lock()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._refusing = False
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.dsn = make_conninfo(target, host="127.0.0.1", hostaddr=None, port=self.port)
        self.accepted = 0  # connections let through so far
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> int:
        """End every connection, on both sides and without a goodbye; how many there were."""
        with self._lock:
            pairs = list(self._pairs.items())
            self._pairs.clear()
        for client, server in pairs:
            _end(client)
            _end(server)
        return len(pairs)

    def refuse(self) -> None:
        """Let no new connection through."""
        self._refusing = True

    def accept(self) -> None:
        """Let new connections through again."""
        self._refusing = False

    def hold(self) -> None:
        """Pass nothing on, until `release`."""
        self._flowing.clear()

    def mute(self) -> None:
        """Pass on what clients send, and none of the answers, until `release`."""
        self._answering.clear()

    def release(self) -> None:
        self._flowing.set()
        self._answering.set()

    def close(self) -> None:
        self.release()
        # Closing a socket does not wake a thread in accept(); shutting it down does.
        with suppress(OSError):  # macOS refuses this on a listener, and wakes the thread by closing it
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._refusing:
                _abort(client)
                continue
            try:
                server = self._dial()
            except OSError:
                _abort(client)  # what the client sees when the server is down
                continue
            with self._lock:
                self._pairs[client] = server
                self.accepted += 1
            threading.Thread(target=self._pump, args=(client, server), name="proxy pump", daemon=True).start()

    def _dial(self) -> socket.socket:
        host, port = str(self._target["host"]), int(self._target.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        """Pass bytes on, both ways, until either side ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            try:
                while True:
                    for key, _ in selector.select():
                        self._flowing.wait()
                        source = key.fileobj
                        if source is server:
                            self._answering.wait()
                        assert isinstance(source, socket.socket)
                        chunk = source.recv(65_536)
                        if not chunk:
                            return
                        key.data.sendall(chunk)
            except (OSError, ValueError):
                return  # cut, or one side has gone
            finally:
                with self._lock:
                    self._pairs.pop(client, None)
                client.close()
                server.close()


def _abort(connection: socket.socket) -> None:
    """Reset it, as the system of a server that is down does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _end(connection: socket.socket) -> None:
    """Wake whoever reads it, without closing its number under their hands."""
    with suppress(OSError):  # it has gone by itself
        connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(spawn: object) -> Iterator[Callable[[str], Proxy]]:
    """Put a proxy before a database: `proxy(dsn) -> Proxy`, whose `.dsn` leads through it."""
    # `spawn` is asked for so that threads are joined after what they wait for is cut.
    with ExitStack() as stack:

        def start(dsn: str) -> Proxy:
            made = Proxy(dsn)
            stack.callback(made.close)
            return made

        yield start
