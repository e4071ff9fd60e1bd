"""`up`: every service in order, real health, and nothing left behind when it fails."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from frazil.stack.credentials import ensure_credentials
from frazil.stack.home_lock import Say, lock_home
from frazil.stack.jars import ensure_jars
from frazil.stack.java import find_java
from frazil.stack.pool_sync import connect_pools, sync_pools
from frazil.stack.ports import (
    Ports,
    is_free,
    load_ports,
    read_port_wishes,
    refuse_moved_ports,
    refuse_taken_ports,
    resolve_ports,
    save_ports,
)
from frazil.stack.preparation import format_kafka, init_catalog, migrate_airflow
from frazil.stack.processes import find_processes
from frazil.stack.rendering import render_stack
from frazil.stack.services import (
    SERVICE_PARTS,
    StackPlan,
    build_services,
    ports_of,
    supervisor_environment,
)
from frazil.stack.settings import PartName, StackSettings
from frazil.stack.status import save_description
from frazil.stack.stopping import end_processes, stop_everything, stop_services
from frazil.stack.supervision import (
    ACTIVE_STATES,
    ServiceInfo,
    Supervisor,
    connect_supervisor,
    launch_supervisor,
)
from frazil.stack.waiting import wait_for_part

_NOTICEABLE_SECONDS = 0.5


def start_stack(settings: StackSettings, parts: Sequence[PartName], say: Say) -> bool:
    """Start what is missing of these parts and wait until all of them answer.

    Returns:
        Whether anything had to be started.

    Raises:
        StackError: Java, a jar, a port or a service stands in the way; what this call started
            is stopped again.
    """
    settings.stack.mkdir(mode=0o700, parents=True, exist_ok=True)
    with lock_home(settings.stack, say):
        supervisor = _adopt_supervisor(settings, say)
        states = supervisor.services() if supervisor else {}
        wanted = [name for name, part in SERVICE_PARTS.items() if part in parts]
        missing = [name for name in wanted if not _is_active(states.get(name))]
        ports = _decide_ports(settings, is_running=supervisor is not None)
        plan = _prepare(settings, ports, missing, say) if missing else None
        others = {name for name, info in states.items() if _is_active(info)}
        with _undone_on_failure(settings, missing, say, spare_others=bool(others)):
            started: dict[PartName, float | None] = dict.fromkeys(parts)
            if plan is not None:
                supervisor = supervisor or _launch(settings)
                started |= _start_services(supervisor, plan, missing, say)
            if supervisor is not None:
                _wait_for_parts(settings, ports, supervisor, started, say)
    return bool(missing)


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


def _is_active(info: ServiceInfo | None) -> bool:
    """Say whether supervisor runs this service."""
    return info is not None and info.state in ACTIVE_STATES


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
    refuse_taken_ports(ports, frozenset[str]().union(*map(ports_of, missing)))
    with _timed("jars: fetched", say):
        ensure_jars(settings, java, say)
    plan = StackPlan(settings, ports, java, ensure_credentials(settings.airflow))
    render_stack(plan, build_services(plan))
    save_ports(settings.stack / "ports.json", ports)
    save_description(settings, ports)
    return plan


def _launch(settings: StackSettings) -> Supervisor:
    """Start supervisor in the user's environment, less what belongs to other programs."""
    return launch_supervisor(settings.stack, settings.bin, supervisor_environment(settings))


def _start_services(
    supervisor: Supervisor, plan: StackPlan, missing: Sequence[str], say: Say
) -> Mapping[PartName, float]:
    """Start services in order; Kafka and Spark come up while Airflow's database migrates.

    Returns:
        When each part was started, on the monotonic clock.
    """
    started: dict[PartName, float] = {}
    with _timed("catalog: created", say):
        init_catalog(plan.settings)
    for name in missing:
        if name == "kafka":
            format_kafka(plan)
        elif name == "airflow_api_server":
            with _timed("airflow: database migrated", say):
                migrate_airflow(plan)
        started.setdefault(SERVICE_PARTS[name], time.monotonic())
        supervisor.start(name)
    return started


def _wait_for_parts(
    settings: StackSettings,
    ports: Ports,
    supervisor: Supervisor,
    started: Mapping[PartName, float | None],
    say: Say,
) -> None:
    """Wait for each part in turn, and for the pools that Airflow's tasks will name."""
    for part, since in started.items():
        wait_for_part(part, ports, supervisor)
        taken = "already up" if since is None else f"ready in {time.monotonic() - since:.1f} s"
        say(f"{part}: {taken}")
        if part == "airflow":
            sync_pools(connect_pools(settings.home), settings.streams)


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
