"""Start and stop the stack: services in order, health checks, no process left after a failure."""

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
    read_configured_ports,
    require_free_ports,
    require_unmoved_ports,
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
from frazil_stack.settings import PARTS, PartName, ReportProgress, StackSettings, lock_home
from frazil_stack.status import save_description
from frazil_stack.supervisor import (
    ACTIVE_STATES,
    ServiceInfo,
    Supervisor,
    connect_supervisor,
    launch_supervisor,
)

_NOTICEABLE_SECONDS = 0.5
# Longer than supervisor's own `stopwaitsecs`, after which it kills the service's process group.
_STOP_TIMEOUT_SECONDS = LONGEST_STOP_SECONDS + 20.0
_SHUTDOWN_SECONDS = 5.0
_TERMINATE_SECONDS = 10.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.1


def start_stack(settings: StackSettings, parts: Sequence[PartName], report: ReportProgress) -> bool:
    """Start the services of these parts that do not run, and wait until all parts are healthy.

    Returns:
        Whether any service was started.

    Raises:
        StackError: Java, a jar or a port is missing, or a service failed; the services that
            this call started are stopped again.
    """
    _make_home(settings)
    with lock_home(settings.stack, report):
        supervisor = _adopt_supervisor(settings, report)
        states = supervisor.services() if supervisor else {}
        active = {name for name, info in states.items() if info.state in ACTIVE_STATES}
        wanted = [name for name, part in SERVICE_PARTS.items() if part in parts]
        missing = [name for name in wanted if name not in active]
        ports = _decide_ports(settings, is_running=supervisor is not None)
        if missing:
            plan = _prepare(settings, ports, missing, report)
            with _undone_on_failure(settings, missing, report, spare_others=bool(active)):
                _bring_up(supervisor or _launch(settings), plan, parts, missing, report)
        elif supervisor is not None:
            # A previous release may have written it without fields that clients need now.
            save_description(settings, ports)
            for part in parts:
                wait_for_part(part, ports, supervisor)
                report(f"{part}: already up")
    return bool(missing)


def _make_home(settings: StackSettings) -> None:
    """Create the home, accessible to its owner only: it holds keys and data."""
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.stack.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StackError(
            f"cannot write to {settings.home}: {error}",
            "set FRAZIL_HOME to a folder that you may write to",
        ) from error


def _decide_ports(settings: StackSettings, *, is_running: bool) -> Ports:
    """Choose the ports; a running stack keeps its ports.

    Raises:
        StackError: a variable is not a port number, or differs from the running stack.
    """
    configured = read_configured_ports(os.environ)
    previous = load_ports(settings.stack / "ports.json")
    if is_running and previous:
        require_unmoved_ports(configured, previous)
        return previous
    return resolve_ports(configured, previous, is_free)


def _adopt_supervisor(settings: StackSettings, report: ReportProgress) -> Supervisor | None:
    """Connect to the running supervisor; stop processes that a dead one left."""
    supervisor = connect_supervisor(settings.stack)
    if supervisor is None and find_processes(settings.home):
        report("stack: supervisor does not run; stopping the processes that it left")
        end_processes(settings.home, report)
    return supervisor


def _prepare(
    settings: StackSettings, ports: Ports, missing: Sequence[str], report: ReportProgress
) -> StackPlan:
    """Check ports and jars, and write the configuration; nothing is started."""
    java = find_java()
    own_pids = frozenset(process.pid for process in find_processes(settings.home))
    require_free_ports(ports, frozenset[str]().union(*map(ports_of, missing)), own_pids)
    with _timed("jars: downloaded", report):
        ensure_jars(settings, java, report)
        if "registry" in missing:
            ensure_registry(settings, java, report)
    plan = StackPlan(settings, ports, java, ensure_credentials(settings.airflow))
    render_stack(plan, build_services(plan))
    save_ports(settings.stack / "ports.json", ports)
    save_description(settings, ports)
    return plan


def _launch(settings: StackSettings) -> Supervisor:
    """Start supervisor after removing scratch files; no process of this home runs."""
    clear_scratch(settings)
    return launch_supervisor(settings.stack, settings.bin, supervisor_environment(settings))


def _bring_up(
    supervisor: Supervisor,
    plan: StackPlan,
    parts: Sequence[PartName],
    missing: Sequence[str],
    report: ReportProgress,
) -> None:
    """Start each part once the previous one is healthy; migrate Airflow's database meanwhile."""
    init_catalog(plan.settings)
    with ThreadPoolExecutor(max_workers=1) as background:
        needs_database = "airflow" in parts and "airflow_api_server" in missing
        migration = background.submit(migrate_airflow, plan) if needs_database else None
        for part in parts:
            names = [name for name in missing if SERVICE_PARTS[name] == part]
            if part == "kafka":
                format_kafka(plan)
            if part == "airflow" and migration is not None:
                with _timed("airflow: database migrated", report):
                    migration.result()
            started = time.monotonic()
            for name in names:
                supervisor.start(name)
            wait_for_part(part, plan.ports, supervisor)
            result = f"ready in {time.monotonic() - started:.1f} s" if names else "already up"
            report(f"{part}: {result}")


@contextmanager
def _timed(title: str, report: ReportProgress) -> Iterator[None]:
    """Report the duration of a step that took half a second or more."""
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if seconds >= _NOTICEABLE_SECONDS:
        report(f"{title} in {seconds:.1f} s")


@contextmanager
def _undone_on_failure(
    settings: StackSettings, missing: Sequence[str], report: ReportProgress, *, spare_others: bool
) -> Iterator[None]:
    """Stop the services that this call started if anything interrupts it.

    With `spare_others` services that ran before keep running; else supervisor is stopped too.
    """
    try:
        yield
    except BaseException:
        report("stack: start failed; stopping the services that were started")
        supervisor = connect_supervisor(settings.stack)
        if spare_others and supervisor is not None:
            stop_services(supervisor, "stack", missing, report)
        else:
            stop_everything(settings, report)
        raise


def stop_stack(settings: StackSettings, report: ReportProgress) -> int:
    """Stop all processes of this home in order; return how many there were.

    Raises:
        StackError: a process did not end after SIGKILL.
    """
    if not settings.stack.is_dir():
        # The folder may have been removed while the stack ran.
        count = len(find_processes(settings.home))
        end_processes(settings.home, report)
        return count
    with lock_home(settings.stack, report):
        return stop_everything(settings, report)


def stop_everything(settings: StackSettings, report: ReportProgress) -> int:
    """Stop the parts through supervisor, then other processes; return how many there were."""
    count = len(find_processes(settings.home))
    supervisor = connect_supervisor(settings.stack)
    if supervisor is not None:
        for part in reversed(PARTS):
            names = [name for name, owner in SERVICE_PARTS.items() if owner == part]
            stop_services(supervisor, part, names, report)
        supervisor.shutdown()
        wait_until_gone(find_processes(settings.home), _SHUTDOWN_SECONDS)
    end_processes(settings.home, report)
    return count


def stop_services(
    supervisor: Supervisor, title: str, names: Sequence[str], report: ReportProgress
) -> None:
    """Stop services in parallel and wait until supervisor reports that they ended."""
    started = time.monotonic()
    active = [name for name in names if is_stoppable(supervisor.services().get(name))]
    for name in reversed(active):
        supervisor.stop(name)
    while time.monotonic() - started < _STOP_TIMEOUT_SECONDS:
        infos = _read_services(supervisor)
        if not any(is_stoppable(infos.get(name)) for name in active):
            break
        time.sleep(_POLL_SECONDS)
    if active:
        report(f"{title}: stopped in {time.monotonic() - started:.1f} s")


def is_stoppable(info: ServiceInfo | None) -> bool:
    """Return whether a service has a process, or is about to get one."""
    return info is not None and info.state in {"STARTING", "RUNNING", "BACKOFF", "STOPPING"}


def end_processes(home: Path, report: ReportProgress) -> None:
    """Stop the remaining processes of this home: SIGTERM, then SIGKILL.

    Raises:
        StackError: a process did not end after SIGKILL.
    """
    for number, timeout_seconds in (
        (signal.SIGTERM, _TERMINATE_SECONDS),
        (signal.SIGKILL, _KILL_SECONDS),
    ):
        left = find_processes(home)
        if not left:
            return
        report(f"stack: sending {number.name} to {_name_processes(left)}")
        for process in left:
            process.send(number)
        wait_until_gone(left, timeout_seconds)
    left = find_processes(home)
    if left:
        raise StackError(
            f"processes of {home} did not end after SIGKILL: {_name_processes(left)}",
            f"inspect them with `ps -o pid,stat,wchan,args -p {left[0].pid}`,"
            " then repeat `frazil stack down`",
        )


def _name_processes(processes: tuple[StackProcess, ...]) -> str:
    return ", ".join(f"{process.pid} ({process.service})" for process in processes)


def _read_services(supervisor: Supervisor) -> Mapping[str, ServiceInfo]:
    """Return the states of the services; none if supervisor has ended."""
    try:
        return supervisor.services()
    except (OSError, xmlrpc.client.Error):
        return {}
