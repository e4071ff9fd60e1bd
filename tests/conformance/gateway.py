"""What stands before other servers in production: OAuth 2 before a catalog, TLS before Spark."""

import http.client
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlparse

from support.certificates import Identity

CLIENT_ID, CLIENT_SECRET, SCOPE = "frazil", "planted-catalog-secret", "PRINCIPAL_ROLE:ALL"
TOKEN_SECONDS = 30
"""Short, so that a client which never asks again is found out."""


class Guard(BaseHTTPRequestHandler):
    """Issue tokens, and pass on the requests of those who have one."""

    upstream = ""
    tokens: ClassVar[dict[str, float]] = {}
    """Token → the instant of its end."""
    protocol_version = "HTTP/1.1"

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.path == "/token":
            self.answer(*self.issue(body))
        elif self.tokens.get(token, 0) > time.monotonic():
            self.answer(*self.pass_on(body))
        else:
            error = {"message": "no", "type": "NotAuthorizedException", "code": 401}
            self.answer(401, json.dumps({"error": error}).encode())

    do_GET = do_POST = do_HEAD = do_DELETE = serve  # noqa: N815 - names of the module

    def issue(self, body: bytes) -> tuple[int, bytes]:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        given = (form.get("client_id"), form.get("client_secret"), form.get("scope"))
        if given != (CLIENT_ID, CLIENT_SECRET, SCOPE):
            return 401, json.dumps({"error": "invalid_client"}).encode()
        token = f"planted-token-{secrets.token_hex(8)}"
        self.tokens[token] = time.monotonic() + TOKEN_SECONDS
        answer = {
            "access_token": token,
            "token_type": "bearer",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "expires_in": TOKEN_SECONDS,
        }
        return 200, json.dumps(answer).encode()

    def pass_on(self, body: bytes) -> tuple[int, bytes]:
        kept = {k: v for k, v in self.headers.items() if k not in {"Host", "Authorization"}}
        kept["Accept-Encoding"] = "identity"
        with closing(http.client.HTTPConnection(self.upstream, timeout=120)) as client:
            client.request(self.command, self.path, body or None, kept)
            found = client.getresponse()
            return found.status, found.read()

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def guard_by_oauth(upstream: str, kind: type[Guard] = Guard) -> Iterator[str]:
    """Serve a catalog to those who have a token of `/token`; give the address."""
    guard = type("OneGuard", (kind,), {"upstream": str(urlparse(upstream).netloc), "tokens": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), guard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def add_tls(port: int, identity: Identity, folder: Path) -> Iterator[int]:
    """Serve a gRPC server's port over TLS, as a load balancer does; give the port."""
    (folder / "tls.pem").write_text(identity.pem + identity.key())
    (folder / "tls.pem").chmod(0o600)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.pem")
    context.set_alpn_protocols(["h2"])
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        with suppress(OSError):
            outer = context.wrap_socket(plain, server_side=True)
            inner = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=copy, args=(inner, outer), daemon=True).start()
            copy(outer, inner)

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65_536):
                target.sendall(content)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()
