"""The `frazil` command: every step and every question of an operator, with `--json`."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn

import typer

from frazil.errors import FrazilError, UnknownStreamError
from frazil_cli.cost import cost
from frazil_cli.dead_letters import dead_letters, replay_dead_letters
from frazil_cli.doctor import doctor
from frazil_cli.maintenance import erase, expire_rows, maintain
from frazil_cli.migration import adopt, compare, move_cluster
from frazil_cli.output import cli_run_id, fail, keep_answers_clean
from frazil_cli.readiness import drill, readiness
from frazil_cli.recovery import accept_gap, recover, waive
from frazil_cli.replay import backfill, replay
from frazil_cli.schema import review_schema
from frazil_cli.stack import stack_app
from frazil_cli.status import audit, snapshots, status, streams, where
from frazil_cli.steps import plan, run
from frazil_cli.timeline import timeline

app = typer.Typer(
    name="frazil",
    help="Kafka topics become governed Iceberg tables, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(stack_app, name="stack", help="The embedded stack: up, down, status.")
COMMANDS: dict[str, Callable[..., None]] = {
    "doctor": doctor,
    "streams": streams,
    "status": status,
    "plan": plan,
    "run": run,
    "snapshots": snapshots,
    "where": where,
    "audit": audit,
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
_ANSWERS = ("accept", "stop", "quarantine")
"""Options that write without asking for `--no-dry-run`."""


def noting_failures(command: Callable[..., None]) -> Callable[..., None]:
    """Note for the timeline what failed of a command that was to change something."""

    @wraps(command)
    def run_noted(**given: object) -> None:
        try:
            command(**given)
        except FrazilError as error:
            was_to_write = given.get("dry_run") is False or any(map(given.get, _ANSWERS))
            if was_to_write and not isinstance(error, UnknownStreamError):
                from frazil.events import note_failure

                note_failure(error, str(given.get("stream", "")), "", cli_run_id())
            raise

    return run_noted


for name, command in COMMANDS.items():
    app.command(name)(noting_failures(command))


def main() -> NoReturn:
    """Run the command line: exit 0 done, 1 refused or failed with a typed error, 2 usage."""
    keep_answers_clean()
    try:
        app()
    except FrazilError as error:
        fail(error, as_json="--json" in sys.argv)
    sys.exit(0)


if __name__ == "__main__":
    main()
