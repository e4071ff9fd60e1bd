"""The processes of a stack, known by the mark in their environment, not by recorded pids.

A pid file lies after a crash and pids are used again. The environment of a process cannot be
taken over by another: FRAZIL_HOME says whose it is, FRAZIL_STACK_SERVICE that it is a service.
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

    def still_runs(self) -> bool:
        """Say whether this very process is alive; a zombie has ended."""
        return _alive(self) is not None

    def send(self, signal_number: int) -> None:
        """Signal this very process, or nobody."""
        process = _alive(self)
        if process is not None:
            try:
                process.send_signal(signal_number)
            except psutil.Error:
                return


@dataclass(frozen=True)
class Memory:
    """Resident memory; `pss` counts a page shared by n processes as 1/n in each."""

    rss_mb: int
    pss_mb: int | None


def find_processes(home: Path) -> tuple[StackProcess, ...]:
    """Find every process of the stack of this home, children without the mark included."""
    found: dict[int, StackProcess] = {}
    for process in psutil.process_iter():
        service = _service_of(process, home)
        if service is None:
            continue
        for member in (process, *_descendants(process)):
            _note(found, member, _service_of(member, home) or service)
    found.pop(os.getpid(), None)
    return tuple(sorted(found.values(), key=lambda process: process.pid))


def wait_until_gone(processes: Iterable[StackProcess], timeout_seconds: float) -> bool:
    """Wait until all have ended; False when some outlive the wait."""
    handles = [handle for process in processes if (handle := _alive(process)) is not None]
    _, alive = psutil.wait_procs(handles, timeout=timeout_seconds)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def measure_memory(processes: Iterable[StackProcess]) -> Memory:
    """Add up the memory of processes, in MiB; `pss_mb` is None where the system has no PSS."""
    rss = 0
    pss: int | None = 0
    for process in processes:
        handle = _alive(process)
        try:
            rss += handle.memory_info().rss if handle else 0
            share = getattr(handle.memory_full_info(), "pss", None) if handle else 0
        except psutil.Error:
            continue
        pss = None if share is None or pss is None else pss + share
    return Memory(rss // _MB, None if pss is None else pss // _MB)


def _service_of(process: psutil.Process, home: Path) -> str | None:
    """Read the mark; None for a stranger, an ended process or one we may not read."""
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
    """List the children of all generations."""
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _note(found: dict[int, StackProcess], process: psutil.Process, service: str) -> None:
    """Keep what identifies a process, unless it has just ended."""
    try:
        if process.pid not in found and process.status() != psutil.STATUS_ZOMBIE:
            command = " ".join(process.cmdline()).strip()[:120] or process.name()
            found[process.pid] = StackProcess(process.pid, process.create_time(), service, command)
    except psutil.Error:
        return


def _alive(process: StackProcess) -> psutil.Process | None:
    """Get a handle on this very process if it has not ended."""
    try:
        handle = psutil.Process(process.pid)
        if handle.create_time() != process.create_time:
            return None
        return None if handle.status() == psutil.STATUS_ZOMBIE else handle
    except psutil.Error:
        return None
