"""Search for planted secrets in all that a cell leaves behind, and in what others can see."""

import tempfile
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PLANTED = b"planted-"
"""Every secret of the cells' servers begins with it."""


def encode_sign(shift: int) -> bytes:
    """Return what Base64 always makes of the sign behind so many bytes, modulo three."""
    text = b64encode(bytes(shift) + PLANTED).rstrip(b"=")
    whole = (shift + len(PLANTED)) * 8 // 6  # the last letter also depends on what follows
    return text[-(-shift * 8 // 6) : whole]


SIGNS = (
    PLANTED,
    *map(encode_sign, range(3)),
    b"BEGIN PRIVATE KEY",
    b"BEGIN ENCRYPTED PRIVATE KEY",
)
OWN_SETTINGS = ("server.properties", "tls.pem", "rest.log")
"""A server's own files, which are not part of what a run leaves.

`rest.log` is written by Iceberg's reference catalog, whose class `RESTCatalogServer` logs all the
properties that it is started with, the keys of its store among them. No code of ours writes there.
"""
_SECONDS = 0.3


@dataclass
class Search:
    """A search for secrets: what holds one, and how much was looked at."""

    found: set[str] = field(default_factory=set)
    texts: int = 0
    size: int = 0
    command_lines: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        """Return how much was looked at."""
        read = f"{self.texts} files and pages ({self.size / 1_000_000:.0f} MB)"
        return f"{read}, {len(self.command_lines)} command lines"

    def read_files(self, folder: Path) -> None:
        """Read all files below a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                self._read(str(path), path.read_bytes())

    def read_traces(self, traces: Mapping[str, str]) -> None:
        """Read the logs, event logs and pages of a Spark server."""
        for name, text in traces.items():
            self._read(name, text.encode())

    def _read(self, name: str, content: bytes) -> None:
        if name.endswith(OWN_SETTINGS):
            return
        self.texts += 1
        self.size += len(content)
        if holds_secret(content):
            self.found.add(name)

    @contextmanager
    def watch_processes(self) -> Iterator[None]:
        """Note command lines with secrets, and files of Spark jobs that other users can read."""
        done = threading.Event()
        own = psutil.Process()

        def watch() -> None:
            while not done.wait(_SECONDS):
                for process in own.children(recursive=True):
                    with suppress(psutil.Error):
                        self.note_command(process.name(), " ".join(process.cmdline()))
                self.found.update(find_readable())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def note_command(self, name: str, words: str) -> None:
        """Look at a command line that all users of the machine can see."""
        self.command_lines.add(words)
        if holds_secret(words.encode()):
            self.found.add(f"command line of {name}")


def holds_secret(content: bytes) -> bool:
    """Return whether a text holds one of the signs."""
    return any(sign in content for sign in SIGNS)


def find_readable() -> set[str]:
    """List the folders and files of running Spark jobs that others than their user can open."""
    found = set()
    for folder in Path(tempfile.gettempdir()).glob("frazil-job-*"):
        with suppress(FileNotFoundError):
            if folder.stat().st_mode & 0o077:
                found.add(f"{folder.name} is open to others")
            for path in folder.glob("*"):
                if path.stat().st_mode & 0o077 and holds_secret(path.read_bytes()):
                    found.add(f"{path.name} of a Spark job is open to others")
    return found
