"""`frazil stack`: start, stop and show the embedded stack."""

import signal
from types import FrameType
from typing import Annotated

import typer

from frazil.messages import count_noun
from frazil_cli.output import Json, console, print_json, print_table
from frazil_stack.control import start_stack, stop_stack
from frazil_stack.ports import Ports, load_ports
from frazil_stack.settings import load_settings, parse_parts
from frazil_stack.status import ServiceStatus, StackStatus, collect_status, load_description

stack_app = typer.Typer(
    help="The embedded stack: Kafka, Spark and Airflow on this machine, without containers.",
    no_args_is_help=True,
)

Only = Annotated[
    str | None,
    typer.Option(
        help="Start only these parts, separated by commas: kafka, spark, airflow, registry.",
        metavar="PARTS",
    ),
]
With = Annotated[
    str | None,
    typer.Option(
        "--with",
        help="Also start these parts, which are not started by default: registry.",
        metavar="PARTS",
    ),
]
Without = Annotated[str | None, typer.Option(help="Do not start these parts.", metavar="PARTS")]


@stack_app.command()
def up(
    only: Only = None, without: Without = None, also: With = None, as_json: Json = False
) -> None:
    """Start the parts that do not run yet, and wait until all of them are healthy.

    Example: frazil stack up --only kafka,spark
    """
    parts = parse_parts(only, without, also)
    settings = load_settings()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    has_started = start_stack(settings, parts, _print)
    description = load_description(settings.home)
    if as_json:
        print_json(description)
        return
    _print("The stack is up." if has_started else "The stack was already up.")
    if "airflow" in parts:
        airflow = description.airflow
        _print(f"Airflow: {airflow.url} (user {airflow.user}, password in {airflow.password_file})")
    _print("Next: `frazil stack status` shows the services, `frazil stack down` stops them.")


@stack_app.command()
def down(as_json: Json = False) -> None:
    """Stop every process of the stack in this FRAZIL_HOME, also after a crash; data is kept.

    Example: frazil stack down
    """
    stopped = stop_stack(load_settings(), _print)
    if as_json:
        print_json({"stopped_processes": stopped})
    else:
        processes = count_noun(stopped, "process", "processes")
        _print(
            f"The stack is down; {processes} stopped." if stopped else "The stack was not running."
        )


@stack_app.command()
def status(as_json: Json = False) -> None:
    """Show addresses, services and memory; exit 1 unless the stack is up.

    Example: frazil stack status --json
    """
    settings = load_settings()
    found = collect_status(settings, load_ports(settings.stack / "ports.json") or Ports())
    if as_json:
        print_json(found)
    else:
        _print_status(found)
    if found.state != "up":
        raise typer.Exit(1)


def _print(line: str) -> None:
    """Print to standard error: standard output is for JSON."""
    typer.echo(line, err=True)


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    """Raise an exception on SIGTERM, so that `up` stops what it has started."""
    raise SystemExit(128 + number)


def _memory_of(found: ServiceStatus | StackStatus) -> int:
    """Return MiB; pages shared by forks count once where the system reports PSS."""
    return found.rss_mb if found.pss_mb is None else found.pss_mb


def _print_status(found: StackStatus) -> None:
    rows = [(name, part.state, part.pid, _memory_of(part)) for name, part in found.parts.items()]
    print_table(f"Stack in {found.home}: {found.state}", ("service", "state", "pid", "MiB"), rows)
    console.print(f"Memory: {_memory_of(found)} MiB")
    console.print(f"Kafka: {found.kafka.bootstrap}   Spark Connect: {found.spark_connect.url}")
    if found.parts["registry"].pid:
        console.print(f"Schema registry: {found.schema_registry.url}")
    console.print(f"Airflow: {found.airflow.url} (user {found.airflow.user})")
    console.print(f"Catalog: {found.catalog.name} at {found.catalog.properties['uri']}")
