"""A gate in front of a server: shut, its clients see a server that is not there."""

import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 65_536
HOST = "127.0.0.1"


class Gate:
    """Pass connections on to a port of this machine while it stands open."""

    def __init__(self, port: int) -> None:
        """Begin open; `self.port` is where clients connect."""
        self._target = port
        self._lines: list[socket.socket] = []
        self.port = 0
        self.open()

    def open(self) -> None:
        """Listen, on the same port as before."""
        self._listener = socket.create_server((HOST, self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def shut(self) -> None:
        """Refuse new connections and cut those that stand."""
        for line in (self._listener, *self._lines):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()
        self._lines.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((HOST, self._target))
                self._lines += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_pass_on, args=pair, daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(CHUNK_BYTES):
            sink.sendall(content)
        sink.shutdown(socket.SHUT_WR)
