"""`down`: every process ends, also those that supervisor no longer knows."""

import signal
import time
import xmlrpc.client
from collections.abc import Mapping, Sequence
from pathlib import Path

from frazil.errors import StackError
from frazil.stack.home_lock import Say, lock_home
from frazil.stack.processes import StackProcess, find_processes, wait_until_gone
from frazil.stack.services import LONGEST_STOP_SECONDS, SERVICE_PARTS
from frazil.stack.settings import PARTS, StackSettings
from frazil.stack.supervision import ServiceInfo, Supervisor, connect_supervisor

# Longer than supervisor's own `stopwaitsecs`, after which it kills the service's group.
_STOP_TIMEOUT_SECONDS = LONGEST_STOP_SECONDS + 20.0
_LEAVE_SECONDS = 5.0
_TERMINATE_SECONDS = 10.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1


def stop_stack(settings: StackSettings, say: Say) -> int:
    """Stop everything of this home in order and count the processes that were there.

    Raises:
        StackError: a process outlived even SIGKILL.
    """
    if not settings.stack.is_dir():
        # Somebody may have removed the folder under a running stack.
        count = len(find_processes(settings.home))
        end_processes(settings.home, say)
        return count
    with lock_home(settings.stack, say):
        return stop_everything(settings, say)


def stop_everything(settings: StackSettings, say: Say) -> int:
    """Stop part by part through supervisor, then whatever is left, by the mark it carries."""
    count = len(find_processes(settings.home))
    supervisor = connect_supervisor(settings.stack)
    if supervisor is not None:
        for part in reversed(PARTS):
            names = [name for name, owner in SERVICE_PARTS.items() if owner == part]
            stop_services(supervisor, part, names, say)
        supervisor.shutdown()
        wait_until_gone(find_processes(settings.home), _LEAVE_SECONDS)
    end_processes(settings.home, say)
    return count


def stop_services(supervisor: Supervisor, title: str, names: Sequence[str], say: Say) -> None:
    """Stop services together and wait until supervisor has seen them end."""
    started = time.monotonic()
    active = [name for name in names if is_stoppable(supervisor.services().get(name))]
    for name in reversed(active):
        supervisor.stop(name)
    while time.monotonic() - started < _STOP_TIMEOUT_SECONDS:
        infos = _ask(supervisor)
        if not any(is_stoppable(infos.get(name)) for name in active):
            break
        time.sleep(_POLL_SECONDS)
    if active:
        say(f"{title}: stopped in {time.monotonic() - started:.1f} s")


def is_stoppable(info: ServiceInfo | None) -> bool:
    """Say whether a service has a process, or is about to get one."""
    return info is not None and info.state in {"STARTING", "RUNNING", "BACKOFF", "STOPPING"}


def end_processes(home: Path, say: Say) -> None:
    """End what still carries the mark of this home: first kindly, then not.

    Raises:
        StackError: a process outlived even SIGKILL.
    """
    for number, patience_seconds in (
        (signal.SIGTERM, _TERMINATE_SECONDS),
        (signal.SIGKILL, _KILL_SECONDS),
    ):
        left = find_processes(home)
        if not left:
            return
        say(f"stack: {number.name} to {_name_processes(left)}")
        for process in left:
            process.send(number)
        wait_until_gone(left, patience_seconds)
    left = find_processes(home)
    if left:
        raise StackError(
            f"these processes of {home} do not end: {_name_processes(left)}",
            f"look at them with `ps -o pid,stat,wchan,args -p {left[0].pid}`,"
            " then `frazil stack down` again",
        )


def _name_processes(processes: tuple[StackProcess, ...]) -> str:
    """List pids with their services."""
    return ", ".join(f"{process.pid} ({process.service})" for process in processes)


def _ask(supervisor: Supervisor) -> Mapping[str, ServiceInfo]:
    """Ask for the states; a supervisor that has gone away runs nothing."""
    try:
        return supervisor.services()
    except (OSError, xmlrpc.client.Error):
        return {}
