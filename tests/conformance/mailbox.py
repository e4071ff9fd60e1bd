"""A mail server that asks for a password, as the one of a site does."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer

MAIL_USER, MAIL_PASSWORD = "alerts", "planted-smtp-password"


@dataclass
class Mailbox:
    """A mail server: its port, and the mails of those who gave the password."""

    port: int = 0
    mails: list[str] = field(default_factory=list)


class _Session(StreamRequestHandler):
    """Speak as much SMTP as a client needs that logs in by PLAIN and sends mails."""

    def handle(self) -> None:
        self.is_known = False
        self.say("220 ready")
        while line := self.rfile.readline().decode().strip():
            command, _, rest = line.partition(" ")
            if command.upper() == "QUIT":
                return self.say("221 bye")
            self.say(self.answer(command.upper(), rest))
        return None

    def answer(self, command: str, rest: str) -> str:
        if command == "EHLO":
            return "250-here\r\n250 AUTH PLAIN"
        if command == "AUTH":
            given = base64.b64decode(rest.removeprefix("PLAIN ")).decode().split("\0")
            self.is_known = given[1:] == [MAIL_USER, MAIL_PASSWORD]
            return "235 known" if self.is_known else "535 unknown"
        if not self.is_known:
            return "530 log in first"
        if command == "DATA":
            self.say("354 go on")
            self.mailbox.mails.append("".join(iter(self.read_line, ".\r\n")))
        return "250 done"

    def read_line(self) -> str:
        return self.rfile.readline().decode()

    def say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    @property
    def mailbox(self) -> Mailbox:
        assert isinstance(self.server, _Server)
        return self.server.mailbox


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(("127.0.0.1", 0), _Session)
        self.mailbox = mailbox


@contextmanager
def receive_mail() -> Iterator[Mailbox]:
    """Receive mails until the block ends."""
    mailbox = Mailbox()
    with _Server(mailbox) as server:
        mailbox.port = int(server.server_address[1])
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield mailbox
        server.shutdown()
