"""A wire to an HTTP server of this machine: requests get there, and a test decides about answers.

    wire.script = [landed_then(504), honest]

Only commits on tables are scripted, first entry first; everything else passes, and so do commits
once the script is used up.
"""

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
COMMIT = re.compile(r"POST /v1/namespaces/[^/]+/tables/[^/]+\Z")
ERROR = b'{"error": {"message": "said by the wire", "type": "Wire", "code": %d}}'


@dataclass(frozen=True)
class Reply:
    """What a server answered."""

    status: int
    content: bytes


Send = Callable[[], Reply]
Answer = Callable[[Send], Reply | None]
"""Decide about one request; None cuts the connection instead of an answer."""


@dataclass
class Wire:
    """The network between the clients of one server and the server."""

    port: int
    script: list[Answer] = field(default_factory=list)
    held: list[Send] = field(default_factory=list)
    replies: list[int] = field(default_factory=list)
    """What the server itself said to each commit that reached it."""

    def send(self, method: str, path: str, headers: dict[str, str], content: bytes) -> Reply:
        """Bring a request to the server."""
        line = http.client.HTTPConnection(HOST, self.port)
        line.request(method, path, content or None, headers)
        response = line.getresponse()
        reply = Reply(response.status, response.read())
        line.close()
        if COMMIT.match(f"{method} {path}"):
            self.replies.append(reply.status)
        return reply

    def hold(self, send: Send) -> None:
        """Keep a commit on the wire; its client is cut off."""
        self.held.append(send)

    def deliver(self) -> Reply:
        """Bring the commit that was kept to the server."""
        return self.held.pop(0)()


def honest(send: Send) -> Reply:
    """Pass it on."""
    return send()


def landed_then(status: int) -> Answer:
    """Let the commit land, and say something else; 0 cuts the connection."""

    def answer(send: Send) -> Reply | None:
        send()
        return Reply(status, ERROR % status) if status else None

    return answer


def refused(status: int) -> Answer:
    """Answer in the server's place; nothing gets there."""
    return lambda _send: Reply(status, ERROR % status)


def overtaken_by(event: Callable[[], object]) -> Answer:
    """Let others act before the commit gets there."""

    def answer(send: Send) -> Reply:
        event()
        return send()

    return answer


def sent_twice(send: Send) -> Reply:
    """Send it twice, as a proxy does that saw no answer; the second answer gets through."""
    send()
    return send()


@contextmanager
def run_wire(port: int) -> Iterator[tuple[Wire, int]]:
    """Listen in front of a server; give the wire and the port where clients connect."""
    wire = Wire(port)

    class Passage(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() != "accept-encoding"}

            def send() -> Reply:
                return wire.send(self.command, self.path, headers, content)

            is_commit = COMMIT.match(f"{self.command} {self.path}")
            answer = wire.script.pop(0) if is_commit and wire.script else honest
            reply = answer(send)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(reply.content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.content)

        do_GET = do_POST = do_HEAD = do_DELETE = pass_on  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer((HOST, 0), Passage) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield wire, server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
