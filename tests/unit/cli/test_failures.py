"""What fails on a person's command that was to change something stays on the timeline."""

from pathlib import Path

import pytest
import typer

from frazil.errors import CatalogUnavailableError
from frazil.events import read_notes
from frazil_cli.main import noting_failures


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))


def erase(stream: str, dry_run: bool = True) -> None:  # noqa: FBT001, FBT002 - a command
    """Stand for a command whose catalog is gone."""
    raise CatalogUnavailableError(f"{stream}: dry run {dry_run}", "look")


def test_a_command_that_was_to_write_leaves_its_failure() -> None:
    with pytest.raises(CatalogUnavailableError):
        noting_failures(erase)(stream="orders", dry_run=False)

    (event,) = read_notes()
    assert (event.stream, event.kind) == ("orders", "failure")
    assert event.text.endswith("orders: dry run False")
    assert (event.run_id or "").startswith("cli-")


def test_a_look_leaves_nothing() -> None:
    with pytest.raises(CatalogUnavailableError):
        noting_failures(erase)(stream="orders", dry_run=True)

    assert not read_notes()


def test_a_command_keeps_its_name_its_help_and_its_options() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(noting_failures(erase))
    command = typer.main.get_command(app)

    assert (command.help or "").startswith("Stand for a command")
    assert [parameter.name for parameter in command.params] == ["stream", "dry_run"]
