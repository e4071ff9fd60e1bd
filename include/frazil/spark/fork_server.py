"""A process that has done the imports, and forks for each script that somebody wants to run.

A client of Spark imports for a second before it does anything. This server imports once and has no
connection and no thread of Python's, so that a fork of it is as good as a new process: the script
runs under its own environment, in a process group of its own, and ends when whoever asked for it
is gone, or the server is stopped.

    python -m frazil.spark.fork_server SOCKET MODULE…

Frazil's own modules may be among them: a fork runs what is on disk all the same (`preloading`).
"""

import ctypes
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from setproctitle import setproctitle

from frazil.spark.preloading import preload

GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_BACKLOG = 64


@dataclass(frozen=True)
class Order:
    """What to run, and as whom: all that a new process would be given."""

    interpreter: str
    script: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str


class ForkedScript:
    """A script in a fork of the server; to be used in a `with` block, which it does not outlive."""

    def __init__(
        self,
        address: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        outputs: tuple[int, int],
    ) -> None:
        """Ask the server for `python script argument…`; `outputs` are open file descriptors.

        Raises:
            OSError: nobody listens there, or it is a server of another interpreter.
        """
        interpreter, script, *arguments = command
        order = Order(interpreter, script, arguments, dict(environment), str(Path.cwd()))
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(str(address))
            socket.send_fds(self._connection, [b"\n"], outputs)
            self._connection.sendall(json.dumps(asdict(order)).encode() + b"\n")
            self._answers = self._connection.makefile()
            told = self._answers.readline()
            if not told:
                message = f"the fork server at {address} refused"
                raise ConnectionRefusedError(message)
        except OSError:
            self._connection.close()
            raise
        self.pid = int(told)
        self.returncode: int | None = None
        self.cpu_ms = 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and give the exit code, below zero for a signal.

        Raises:
            TimeoutError: it still runs.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                message = f"process {self.pid} still runs"
                raise TimeoutError(message)
            code, _, cpu_ms = (self._answers.readline() or f"{-signal.SIGKILL}").partition(" ")
            self.returncode, self.cpu_ms = int(code), int(cpu_ms or 0)
        return self.returncode

    def __enter__(self) -> Self:
        """Begin the block that it lives in."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it if it still runs: whoever holds the other end sees that nobody waits."""
        try:
            if self.returncode is None:
                self._connection.shutdown(socket.SHUT_WR)
                self.wait(2 * GRACE_SECONDS)
        finally:
            self._answers.close()
            self._connection.close()


def serve(address: Path) -> None:
    """Fork for each order; does not come back."""
    draft = address.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(_BACKLOG)
        draft.replace(address)  # who sees it finds somebody who listens
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for who attends
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                attend(connection)
                os._exit(0)
            connection.close()


def attend(connection: socket.socket) -> None:
    """Run one script in a child and tell its pid and exit code; stop it when nobody waits."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    order = Order(**json.loads(connection.makefile().readline()))
    if order.interpreter != sys.executable or not hasattr(os, "pidfd_open"):
        return  # refused before anything runs: then it is started as a process of its own
    attendant, child = os.getpid(), os.fork()
    if child == 0:
        end_with(attendant)
        connection.close()
        become(order, (outputs[0], outputs[1]))
    with suppress(OSError):
        os.setpgid(child, child)
    for output in outputs:
        os.close(output)
    ended = os.pidfd_open(child)
    signal.signal(signal.SIGTERM, lambda *_: stop(child, ended))  # the server is being stopped
    with suppress(OSError):
        connection.sendall(f"{child}\n".encode())
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        stop(child, ended)
    _, status, used = os.wait4(child, 0)
    cpu_ms = round((used.ru_utime + used.ru_stime) * 1000)
    with suppress(OSError):
        connection.sendall(f"{os.waitstatus_to_exitcode(status)} {cpu_ms}\n".encode())


def end_with(parent: int) -> None:
    """End this process with its parent, which may be killed; then nobody would wait."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before it was watched
        os._exit(1)


def stop(child: int, ended: int) -> None:
    """Ask a process group to end, and kill what has not ended soon."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child, sign)
        if select.select([ended], [], [], GRACE_SECONDS)[0]:
            return


def become(order: Order, outputs: tuple[int, int]) -> None:
    """Run the script as if this process had been started for it; does not come back."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    os.closerange(3, max(*outputs) + 1)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    os.chdir(order.folder)
    random.seed()
    setproctitle(" ".join([sys.executable, order.script, *order.arguments]))
    sys.argv = [order.script, *order.arguments]
    sys.path[0] = str(Path(order.script).parent)
    code = 0
    try:
        runpy.run_path(order.script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody caught
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking a thousand modules apart would last longer than most scripts.
    os._exit(code)


def main() -> None:
    """Import what the command line names, then serve."""
    preload(sys.argv[2:])
    gc.freeze()  # no fork collects, and with that copies, what all of them share
    # Before the first fork: it looks for its room in the environment, which a fork replaces.
    setproctitle(" ".join(["python -m frazil.spark.fork_server", *sys.argv[1:]]))
    serve(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
