"""An HTTP server of a test's own."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Request = BaseHTTPRequestHandler
"""A request: its `command`, `path`, `headers` and, in `rfile`, its body."""
HOST = "127.0.0.1"


@contextmanager
def serve_http(
    answer: Callable[[Request], tuple[int, bytes]], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Answer requests with a status and a body; give the address without its scheme."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_POST = do_HEAD = do_GET  # noqa: N815 - names of the module

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"{HOST}:{server.server_port}"
        server.shutdown()
