"""`up`: every service in order, real health, and nothing left behind when it fails."""

import os
import signal
import time
import xmlrpc.client
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from frazil.errors import StackError
from frazil_stack.credentials import ensure_credentials
from frazil_stack.health import wait_for_part
from frazil_stack.jars import ensure_jars, ensure_registry
from frazil_stack.java import find_java
from frazil_stack.ports import (
    Ports,
    is_free,
    load_ports,
    read_port_wishes,
    refuse_moved_ports,
    refuse_taken_ports,
    resolve_ports,
    save_ports,
)
from frazil_stack.preparation import (
    clear_scratch,
    format_kafka,
    init_catalog,
    migrate_airflow,
    render_stack,
)
from frazil_stack.processes import StackProcess, find_processes, wait_until_gone
from frazil_stack.services import (
    LONGEST_STOP_SECONDS,
    SERVICE_PARTS,
    StackPlan,
    build_services,
    ports_of,
    supervisor_environment,
)
from frazil_stack.settings import PARTS, PartName, Say, StackSettings, lock_home
from frazil_stack.status import save_description
from frazil_stack.supervisor import (
    ACTIVE_STATES,
    ServiceInfo,
    Supervisor,
    connect_supervisor,
    launch_supervisor,
)

_NOTICEABLE_SECONDS = 0.5


def start_stack(settings: StackSettings, parts: Sequence[PartName], say: Say) -> bool:
    """Start what is missing of these parts and wait until all of them answer.

    Returns:
        Whether anything had to be started.

    Raises:
        StackError: Java, a jar, a port or a service stands in the way; what this call started
            is stopped again.
    """
    _make_home(settings)
    with lock_home(settings.stack, say):
        supervisor = _adopt_supervisor(settings, say)
        states = supervisor.services() if supervisor else {}
        active = {name for name, info in states.items() if info.state in ACTIVE_STATES}
        wanted = [name for name, part in SERVICE_PARTS.items() if part in parts]
        missing = [name for name in wanted if name not in active]
        ports = _decide_ports(settings, is_running=supervisor is not None)
        if missing:
            plan = _prepare(settings, ports, missing, say)
            with _undone_on_failure(settings, missing, say, spare_others=bool(active)):
                _bring_up(supervisor or _launch(settings), plan, parts, missing, say)
        elif supervisor is not None:
            # Another version may have written it, without what clients ask for now.
            save_description(settings, ports)
            for part in parts:
                wait_for_part(part, ports, supervisor)
                say(f"{part}: already up")
    return bool(missing)


def _make_home(settings: StackSettings) -> None:
    """Make the home its owner's alone: it holds keys and data."""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.stack.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StackError(
            f"{settings.home} cannot be written: {error}",
            "point FRAZIL_HOME to a folder that you may write",
        ) from error


def _decide_ports(settings: StackSettings, *, is_running: bool) -> Ports:
    """Settle the ports; those of a running stack stay.

    Raises:
        StackError: a port variable is no port, or would move a running service.
    """
    wishes = read_port_wishes(os.environ)
    remembered = load_ports(settings.stack / "ports.json")
    if is_running and remembered:
        refuse_moved_ports(wishes, remembered)
        return remembered
    return resolve_ports(wishes, remembered, is_free)


def _adopt_supervisor(settings: StackSettings, say: Say) -> Supervisor | None:
    """Connect to the running supervisor; clear away what a dead one left behind."""
    supervisor = connect_supervisor(settings.stack)
    if supervisor is None and find_processes(settings.home):
        say("stack: its supervisor is gone; clearing away what it left")
        end_processes(settings.home, say)
    return supervisor


def _prepare(settings: StackSettings, ports: Ports, missing: Sequence[str], say: Say) -> StackPlan:
    """Check and write everything that starting needs; nothing runs yet."""
    java = find_java()
    own_pids = frozenset(process.pid for process in find_processes(settings.home))
    refuse_taken_ports(ports, frozenset[str]().union(*map(ports_of, missing)), own_pids)
    with _timed("jars: fetched", say):
        ensure_jars(settings, java, say)
        if "registry" in missing:
            ensure_registry(settings, java, say)
    plan = StackPlan(settings, ports, java, ensure_credentials(settings.airflow))
    render_stack(plan, build_services(plan))
    save_ports(settings.stack / "ports.json", ports)
    save_description(settings, ports)
    return plan


def _launch(settings: StackSettings) -> Supervisor:
    """Start supervisor where nothing of this home runs yet."""
    clear_scratch(settings)
    return launch_supervisor(settings.stack, settings.bin, supervisor_environment(settings))


def _bring_up(
    supervisor: Supervisor,
    plan: StackPlan,
    parts: Sequence[PartName],
    missing: Sequence[str],
    say: Say,
) -> None:
    """Start part by part, each once the one before answers; Airflow's database migrates beside."""
    init_catalog(plan.settings)
    with ThreadPoolExecutor(max_workers=1) as background:
        needs_database = "airflow" in parts and "airflow_api_server" in missing
        migration = background.submit(migrate_airflow, plan) if needs_database else None
        for part in parts:
            names = [name for name in missing if SERVICE_PARTS[name] == part]
            if part == "kafka":
                format_kafka(plan)
            if part == "airflow" and migration is not None:
                with _timed("airflow: waited for its database", say):
                    migration.result()
            started = time.monotonic()
            for name in names:
                supervisor.start(name)
            wait_for_part(part, plan.ports, supervisor)
            taken = f"ready in {time.monotonic() - started:.1f} s" if names else "already up"
            say(f"{part}: {taken}")


@contextmanager
def _timed(title: str, say: Say) -> Iterator[None]:
    """Say how long a step took if a person could have noticed."""
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds >= _NOTICEABLE_SECONDS:
        say(f"{title} in {seconds:.1f} s")


@contextmanager
def _undone_on_failure(
    settings: StackSettings, missing: Sequence[str], say: Say, *, spare_others: bool
) -> Iterator[None]:
    """Stop again what this call started, whatever interrupts it.

    Services that ran before go on; if there were none, supervisor ends too.
    """
    try:
        yield
    except BaseException:
        say("stack: could not start; stopping what was started")
        supervisor = connect_supervisor(settings.stack)
        if spare_others and supervisor is not None:
            stop_services(supervisor, "stack", missing, say)
        else:
            stop_everything(settings, say)
        raise


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
