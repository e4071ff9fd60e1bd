"""`frazil stack`: start, stop and describe the embedded stack."""

import signal
from types import FrameType
from typing import Annotated

import typer

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
    typer.Option(help="Start these parts only: kafka,spark,airflow,registry.", metavar="PARTS"),
]
With = Annotated[
    str | None, typer.Option("--with", help="Start these parts too: registry.", metavar="PARTS")
]
Without = Annotated[str | None, typer.Option(help="Leave these parts out.", metavar="PARTS")]


@stack_app.command()
def up(
    only: Only = None, without: Without = None, also: With = None, as_json: Json = False
) -> None:
    """Start the stack and wait until every part answers; running it again completes it.

    Example: frazil stack up --only kafka,spark
    """
    parts = parse_parts(only, without, also)
    settings = load_settings()
    signal.signal(signal.SIGTERM, _interrupt)
    has_started = start_stack(settings, parts, _say)
    description = load_description(settings.home)
    if as_json:
        print_json(description)
        return
    _say("The stack is up." if has_started else "The stack was up already.")
    if "airflow" in parts:
        airflow = description.airflow
        _say(f"Airflow: {airflow.url} (user {airflow.user}, password in {airflow.password_file})")
    _say("Next: `frazil stack status` shows what runs, `frazil stack down` ends it.")


@stack_app.command()
def down(as_json: Json = False) -> None:
    """Stop every process of this home's stack, also after a crash; data stays.

    Example: frazil stack down
    """
    stopped = stop_stack(load_settings(), _say)
    if as_json:
        print_json({"stopped_processes": stopped})
    else:
        _say(f"The stack is down; {stopped} processes ended." if stopped else "Nothing ran.")


@stack_app.command()
def status(as_json: Json = False) -> None:
    """Show addresses, processes and memory; exit 1 unless the stack is up.

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


def _say(line: str) -> None:
    """Tell a person, on standard error, so that standard output stays JSON."""
    typer.echo(line, err=True)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """Turn a polite kill into an exception, so that `up` stops what it has started."""
    raise SystemExit(128 + number)


def _memory_of(found: ServiceStatus | StackStatus) -> int:
    """Count pages that forks share once, where the system tells them apart."""
    return found.rss_mb if found.pss_mb is None else found.pss_mb


def _print_status(found: StackStatus) -> None:
    """Print the status for a person."""
    rows = [(name, part.state, part.pid, _memory_of(part)) for name, part in found.parts.items()]
    print_table(f"Stack in {found.home}: {found.state}", ("service", "state", "pid", "MiB"), rows)
    console.print(f"Memory: {_memory_of(found)} MiB")
    console.print(f"Kafka: {found.kafka.bootstrap}   Spark Connect: {found.spark_connect.url}")
    if found.parts["registry"].pid:
        console.print(f"Schema registry: {found.schema_registry.url}")
    console.print(f"Airflow: {found.airflow.url} (user {found.airflow.user})")
    console.print(f"Catalog: {found.catalog.name} at {found.catalog.properties['uri']}")
