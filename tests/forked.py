"""The `frazil` command without its imports: a server that has done them forks for each command.

Each command is a process of its own all the same, with its own environment and files for its
output, and may be killed at any line. Other tests run the installed command.
"""

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

START_SECONDS = 60


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


def run_frazil(arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> Run:
    """Run a command; one that takes too long is killed.

    Raises:
        subprocess.TimeoutExpired: as `subprocess.run` does.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
        out, err = Path(folder, "out"), Path(folder, "err")
        order = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(Path.cwd()),
            "out": str(out),
            "err": str(err),
        }
        connection.settimeout(timeout)
        connection.connect(start_server())
        connection.sendall(json.dumps(order).encode() + b"\n")
        try:
            answer = connection.makefile().readline()
        except TimeoutError:
            raise subprocess.TimeoutExpired(["frazil", *arguments], timeout) from None
        return Run(int(answer), out.read_text(), err.read_text())


@cache
def start_server() -> str:
    """Start the server of this test process and give its address; it ends with this process."""
    address = str(Path(tempfile.mkdtemp(prefix="frazil-forked-")) / "socket")
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdout is not None
    assert select.select([server.stdout], [], [], START_SECONDS)[0], "the server does not start"
    assert server.stdout.readline() == b"ready\n"
    SERVERS.append(server)
    return address


SERVERS: list["subprocess.Popen[bytes]"] = []
"""Kept, so that its pipe stays open as long as this process lives."""


def serve(address: str) -> None:
    """Fork for each order until the pipe from the test process ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listener, sys.stdin], [], [])
            if sys.stdin in ready:
                Path(address).unlink()
                Path(address).parent.rmdir()
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                attend(connection)
                os._exit(0)
            connection.close()


def attend(connection: socket.socket) -> None:
    """Run one command in a child, and answer with its exit code; kill it if nobody waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        become(order)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(f"{code}\n".encode())


def become(order: Mapping[str, object]) -> None:
    """Run the command as if this process had been started for it; does not come back."""
    from frazil.cli.main import main  # noqa: PLC0415 - imported before the fork

    for number, name in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(str(name), flags, 0o600), number)
    environment, arguments = order["environment"], order["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(str(order["folder"]))
    random.seed()
    sys.argv = ["frazil", *arguments]
    main()


if __name__ == "__main__":
    import frazil.audit
    import frazil.cli.main
    import frazil.ingest
    import frazil.workspace  # noqa: F401 - imported for all that follow

    serve(sys.argv[1])
