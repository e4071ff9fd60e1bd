"""Search for planted secrets in all that a cell leaves behind, and in what others can see."""

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

SIGNS = (b"planted-", b"BEGIN PRIVATE KEY", b"BEGIN ENCRYPTED PRIVATE KEY")
"""Every secret of the cells' servers begins with the first one."""
OWN_SETTINGS = ("server.properties", "tls.pem", "rest.log")
"""A server's own files, which are not part of what a run leaves.

`rest.log` is written by Iceberg's reference catalog, whose class `RESTCatalogServer` logs all the
properties that it is started with, the keys of its store among them. No code of ours writes there.
"""
_SECONDS = 0.3


def find_in_files(folder: Path) -> set[str]:
    """List the files below a folder that hold a secret."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in OWN_SETTINGS and holds_secret(path.read_bytes()):
            found.add(str(path))
    return found


def find_in_traces(traces: Mapping[str, str]) -> set[str]:
    """List the logs, event logs and pages of a Spark server that hold a secret."""
    return {
        name
        for name, text in traces.items()
        if not name.endswith(OWN_SETTINGS) and holds_secret(text.encode())
    }


def holds_secret(content: bytes) -> bool:
    """Return whether a text holds one of the signs."""
    return any(sign in content for sign in SIGNS)


@contextmanager
def watch_processes() -> Iterator[set[str]]:
    """Note command lines with secrets, and files of Spark jobs that other users can read."""
    seen: set[str] = set()
    done = threading.Event()
    own = psutil.Process()

    def watch() -> None:
        while not done.wait(_SECONDS):
            for process in own.children(recursive=True):
                with suppress(psutil.Error):
                    words = " ".join(process.cmdline())
                    if holds_secret(words.encode()):
                        seen.add(f"command line of {process.name()}")
            seen.update(find_readable())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


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
