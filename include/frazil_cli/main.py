"""The `frazil` command: its subcommands, and how an error ends it."""

import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from frazil import __version__
from frazil.errors import FrazilError, UnknownStreamError, hide_message, is_debugging
from frazil_cli.airflow import airflow_app, use_stored_connections
from frazil_cli.checks.doctor import doctor
from frazil_cli.cost import cost
from frazil_cli.dead_letters import dead_letters, replay_dead_letters
from frazil_cli.maintenance import erase, expire_rows, maintain
from frazil_cli.migration import adopt, compare, move_cluster
from frazil_cli.output import cli_run_id, fail, silence_retry_logs
from frazil_cli.readiness import drill, readiness
from frazil_cli.recovery import accept_gap, recover, waive
from frazil_cli.replay import backfill, replay
from frazil_cli.schema import review_schema
from frazil_cli.stack import stack_app
from frazil_cli.status import audit, snapshots, status, streams, verify_source, where
from frazil_cli.steps import merge, plan, run
from frazil_cli.timeline import timeline


class CommandGroup(TyperGroup):
    """The commands; an `EOFError` is reported as an error, not by Click's bare "Aborted."."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - the type of the context is private to Typer
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except EOFError as error:
            fail_unexpectedly(error)


app = typer.Typer(
    name="frazil",
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ingest Kafka topics into governed Iceberg tables, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(airflow_app, name="airflow", help="Set up Frazil in your own Airflow: init.")
app.add_typer(stack_app, name="stack", help="The embedded stack: up, down, status.")
COMMANDS: dict[str, Callable[..., None]] = {
    "doctor": doctor,
    "streams": streams,
    "status": status,
    "plan": plan,
    "run": run,
    "merge": merge,
    "snapshots": snapshots,
    "where": where,
    "audit": audit,
    "verify-source": verify_source,
    "waive": waive,
    "accept-gap": accept_gap,
    "recover": recover,
    "review-schema": review_schema,
    "dead-letters": dead_letters,
    "replay-dead-letters": replay_dead_letters,
    "replay": replay,
    "backfill": backfill,
    "erase": erase,
    "maintain": maintain,
    "expire-rows": expire_rows,
    "timeline": timeline,
    "readiness": readiness,
    "cost": cost,
    "drill": drill,
    "compare": compare,
    "adopt": adopt,
    "move-cluster": move_cluster,
}
_WRITING_OPTIONS = ("accept", "stop", "quarantine")
"""Options that change something without `--no-dry-run`."""


def fail_unexpectedly(error: Exception) -> NoReturn:
    """Print the class and place of an error that is no `FrazilError`; exit 1.

    Its message and traceback are printed too if the user sets `FRAZIL_DEBUG=1`.
    """
    if is_debugging():
        traceback.print_exception(error)
    fail(hide_message(error), as_json="--json" in sys.argv)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"frazil {__version__}")
        raise typer.Exit


@app.callback()
def choose_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Ingest Kafka topics into governed Iceberg tables, exactly once."""


def noting_failures(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command: note its failure for the timeline if the command was to change something."""

    @wraps(command)
    def run_noted(**options: object) -> None:
        try:
            command(**options)
        except FrazilError as error:
            was_to_write = options.get("dry_run") is False or any(
                map(options.get, _WRITING_OPTIONS)
            )
            if was_to_write and not isinstance(error, UnknownStreamError):
                from frazil.events import note_failure

                note_failure(error, str(options.get("stream", "")), "", cli_run_id())
            raise

    return run_noted


for name, command in COMMANDS.items():
    app.command(name)(noting_failures(command))


def main() -> NoReturn:
    """Run the command line; exit 0 if done, 1 if refused or failed, 2 if the usage is wrong."""
    silence_retry_logs()
    use_stored_connections()
    try:
        app()
    except FrazilError as error:
        fail(error, as_json="--json" in sys.argv)
    except Exception as error:  # noqa: BLE001 - the last resort: a command ends with a next step
        fail_unexpectedly(error)
    sys.exit(0)


if __name__ == "__main__":
    main()
