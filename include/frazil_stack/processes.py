"""Find the processes of a stack by two variables in their environment.

Pid files are wrong after a crash, since pids are reused. FRAZIL_HOME in the environment of a
process names its stack, FRAZIL_STACK_SERVICE its service.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from frazil_stack.services import SERVICE_VARIABLE
from frazil_stack.settings import HOME_VARIABLE

_MB = 1024 * 1024


@dataclass(frozen=True)
class StackProcess:
    """One process of a stack; `create_time` guards against a reused pid."""

    pid: int
    create_time: float
    service: str
    command: str

    def send(self, signal_number: int) -> None:
        """Send a signal, unless this process has ended."""
        process = _get_handle(self)
        if process is not None:
            try:
                process.send_signal(signal_number)
            except psutil.Error:
                return


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB; `pss_mb` divides shared pages among the processes that share them."""

    rss_mb: int
    pss_mb: int | None


def find_processes(home: Path) -> tuple[StackProcess, ...]:
    """Return every process of the stack of this home, with all child processes."""
    found: dict[int, StackProcess] = {}
    for process in psutil.process_iter():
        service = _service_of(process, home)
        if service is None:
            continue
        for member in (process, *_descendants(process)):
            _add(found, member, _service_of(member, home) or service)
    found.pop(os.getpid(), None)
    return tuple(sorted(found.values(), key=lambda process: process.pid))


def wait_until_gone(processes: Iterable[StackProcess], timeout_seconds: float) -> bool:
    """Wait until all have ended; return False if the time limit passed."""
    handles = [handle for process in processes if (handle := _get_handle(process)) is not None]
    _, alive = psutil.wait_procs(handles, timeout=timeout_seconds)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def measure_memory(processes: Iterable[StackProcess]) -> Memory:
    """Sum up the memory of processes; `pss_mb` is None if the system does not report it."""
    rss = 0
    pss: int | None = 0
    for process in processes:
        handle = _get_handle(process)
        try:
            rss += handle.memory_info().rss if handle else 0
            share = getattr(handle.memory_full_info(), "pss", None) if handle else 0
        except psutil.Error:
            continue
        pss = None if share is None or pss is None else pss + share
    return Memory(rss // _MB, None if pss is None else pss // _MB)


def _service_of(process: psutil.Process, home: Path) -> str | None:
    """Return the service of a process of this home; None for others, ended or unreadable ones."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        environment = process.environ()
    except (psutil.Error, OSError):
        return None
    if environment.get(HOME_VARIABLE) != str(home):
        return None
    service = environment.get(SERVICE_VARIABLE)
    return str(service) if service else None


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _add(found: dict[int, StackProcess], process: psutil.Process, service: str) -> None:
    """Add a process, unless it has ended."""
    try:
        if process.pid not in found and process.status() != psutil.STATUS_ZOMBIE:
            command = " ".join(process.cmdline()).strip()[:120] or process.name()
            found[process.pid] = StackProcess(process.pid, process.create_time(), service, command)
    except psutil.Error:
        return


def _get_handle(process: StackProcess) -> psutil.Process | None:
    """Return a handle on this process, or None if it has ended."""
    try:
        handle = psutil.Process(process.pid)
        if handle.create_time() != process.create_time:
            return None
        return None if handle.status() == psutil.STATUS_ZOMBIE else handle
    except psutil.Error:
        return None
