"""A server that has done the imports, and forks a process for each script that a client asks for.

A Spark client spends a second on imports. This server imports once and has no connections and no
Python threads, so that a fork of it behaves like a new process: the script has its own environment
and process group, and ends when its client disconnects or the server is stopped.

    python -m frazil.spark.fork_server SOCKET MODULE…

Frazil's own modules may be preloaded too: a fork imports changed files again (`preloading`).
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
import stat
import struct
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

from frazil.environment import shipped_path
from frazil.spark.preloading import preload

GRACE_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")
"""What Linux returns for `SO_PEERCRED`: process, user and group."""
_PR_SET_PDEATHSIG = 1
_BACKLOG = 64


@dataclass(frozen=True)
class ScriptRequest:
    """A script to run, with everything that a new process would be given."""

    interpreter: str
    script: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str


class ForkedScript:
    """A script that runs in a fork of the server; leaving the `with` block stops it."""

    def __init__(
        self,
        address: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        outputs: tuple[int, int],
    ) -> None:
        """Request a run of `python script argument…`; `outputs` are open file descriptors.

        Raises:
            PermissionError: the socket or the server is of another user; nothing was sent, because
                the environment holds secrets.
            OSError: no server listens there, or it runs another interpreter.
        """
        require_own_socket(address)
        interpreter, script, *arguments = command
        request = ScriptRequest(interpreter, script, arguments, dict(environment), str(Path.cwd()))
        self._connection = socket.socket(socket.AF_UNIX)
        try:
            self._connection.connect(str(address))
            if not is_own_peer(self._connection):
                message = f"the server at {address} runs as another user"
                raise PermissionError(message)
            socket.send_fds(self._connection, [b"\n"], outputs)
            self._connection.sendall(json.dumps(asdict(request)).encode() + b"\n")
            self._answers = self._connection.makefile()
            pid = self._answers.readline()
            if not pid:
                message = f"the fork server at {address} refused"
                raise ConnectionRefusedError(message)
        except OSError:
            self._connection.close()
            raise
        self.pid = int(pid)
        self.returncode: int | None = None
        self.cpu_ms = 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the script to end; return its exit code, negative for a signal.

        Raises:
            TimeoutError: the script still runs.
        """
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                message = f"process {self.pid} still runs"
                raise TimeoutError(message)
            code, _, cpu_ms = (self._answers.readline() or f"{-signal.SIGKILL}").partition(" ")
            self.returncode, self.cpu_ms = int(code), int(cpu_ms or 0)
        return self.returncode

    def __enter__(self) -> Self:
        """Return this script."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the script if it still runs, by closing this end of the connection."""
        try:
            if self.returncode is None:
                self._connection.shutdown(socket.SHUT_WR)
                self.wait(2 * GRACE_SECONDS)
        finally:
            self._answers.close()
            self._connection.close()


def require_own_socket(address: Path) -> None:
    """Require that the socket's file is this user's, and closed to others.

    Raises:
        PermissionError: it is not.
        OSError: there is no such file.
    """
    found = address.stat()
    is_open = bool(found.st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    if found.st_uid != os.geteuid() or is_open:
        mode = stat.S_IMODE(found.st_mode)
        message = f"{address} is of user {found.st_uid} with mode {mode:o}, not {os.geteuid()}, 600"
        raise PermissionError(message)


def is_own_peer(connection: socket.socket) -> bool:
    """Return whether the process at the other end runs as this user; false if that is unknown."""
    if not hasattr(socket, "SO_PEERCRED"):
        return False
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return bool(user == os.geteuid())


def serve(address: Path) -> None:
    """Accept requests of this user and fork for each; never returns."""
    draft = address.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(_BACKLOG)
        draft.replace(address)  # the socket appears only when the server listens
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the supervising forks are not waited for
        while True:
            connection, _ = listener.accept()
            with connection:
                if is_own_peer(connection) and os.fork() == 0:
                    listener.close()
                    supervise_script(connection)
                    os._exit(0)


def supervise_script(connection: socket.socket) -> None:
    """Run one script in a child and send its pid and exit code; stop it if the client leaves."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, outputs, _, _ = socket.recv_fds(connection, 1, 2)
    request = ScriptRequest(**json.loads(connection.makefile().readline()))
    if request.interpreter != sys.executable or not hasattr(os, "pidfd_open"):
        return  # refused before anything runs: the client starts a process of its own instead
    supervisor, child = os.getpid(), os.fork()
    if child == 0:
        end_with_parent(supervisor)
        connection.close()
        run_script(request, (outputs[0], outputs[1]))
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


def end_with_parent(parent: int) -> None:
    """Make the kernel end this process when its parent ends, even if the parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the call took effect
        os._exit(1)


def stop(child: int, ended: int) -> None:
    """End a process group by SIGTERM, and by SIGKILL after `GRACE_SECONDS`."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child, sign)
        if select.select([ended], [], [], GRACE_SECONDS)[0]:
            return


def run_script(request: ScriptRequest, outputs: tuple[int, int]) -> None:
    """Run the script as if this process had been started for it; never returns."""
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(outputs[0], 1)
    os.dup2(outputs[1], 2)
    os.closerange(3, max(*outputs) + 1)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    os.chdir(request.folder)
    random.seed()
    setproctitle(" ".join([sys.executable, request.script, *request.arguments]))
    sys.argv = [request.script, *request.arguments]
    sys.path[0] = str(Path(request.script).parent)
    code = 0
    try:
        runpy.run_path(request.script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - like the interpreter with an uncaught exception
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would tear down a thousand modules, which takes longer than most scripts.
    os._exit(code)


def main() -> None:
    """Import the modules of the command line, then serve."""
    sys.path[0] = str(shipped_path("spark_jobs"))  # the folder that each job's own script puts here
    preload(sys.argv[2:])
    gc.freeze()  # otherwise garbage collection in a fork would copy the shared memory pages
    # Before the first fork: setproctitle uses the memory of the environment, which a fork replaces.
    setproctitle(" ".join(["python -m frazil.spark.fork_server", *sys.argv[1:]]))
    serve(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
