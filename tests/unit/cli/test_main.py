"""What fails on a person's command that was to change something stays on the timeline."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from frazil import __version__
from frazil.errors import CatalogUnavailableError
from frazil.events import read_notes
from frazil_cli.main import CommandGroup, fail_unexpectedly, main, noting_failures


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


COMMANDS = [["streams"], ["status", "orders"], ["plan", "orders"], ["stack", "status"]]


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str, str]]:
    """Return a function that runs the command line and returns exit code, output and errors."""

    def run(*words: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["frazil", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("words", [["--version"], ["-h"], *([*c, "-h"] for c in COMMANDS)])
def test_version_and_short_help_exit_0(
    call: Callable[..., tuple[object, str, str]], words: list[str]
) -> None:
    code, out, _ = call(*words)

    assert code == 0
    assert (f"frazil {__version__}" if words == ["--version"] else "Usage: ") in out


@pytest.mark.parametrize("content", ["[", "{}", "[]"])
def test_a_damaged_stack_json_is_named_with_the_command_that_writes_it(
    call: Callable[..., tuple[object, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    content: str,
) -> None:
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "stack.json").write_text(content)
    monkeypatch.delenv("AIRFLOW_CONN_ICEBERG_DEFAULT", raising=False)

    code, _, err = call("snapshots", "flights")

    assert code == 1
    assert "the file is damaged" in err
    assert "Next: run `frazil stack up`, which writes it again" in err


def fail(error: Exception, monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run a command that raises an error; return the exit code."""
    monkeypatch.setattr(sys, "argv", ["frazil", "tear", *words])
    torn = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False)

    @torn.callback()
    def choose() -> None:
        """Make it a group."""

    @torn.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def tear() -> None:
        raise error

    monkeypatch.setattr("frazil_cli.main.app", torn)
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize("debug", ["", "0", "1"])
@pytest.mark.parametrize("error", [KeyError("k"), TypeError("t"), ValueError("v")], ids=repr)
def test_an_error_of_no_known_kind_ends_with_a_next_step(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    debug: str,
) -> None:
    monkeypatch.setenv("FRAZIL_DEBUG", debug)

    assert fail(error, monkeypatch) == 1

    out, err = capsys.readouterr()
    assert f"Unexpected: {type(error).__name__} at " in err
    assert "Next: try again, and check this machine with `frazil doctor`; FRAZIL_DEBUG=1" in err
    assert ("Traceback" in err) is (debug == "1")
    assert "Aborted" not in out + err


def test_an_end_of_input_is_printed_and_not_aborted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fail(EOFError("Ran out of input"), monkeypatch, "--json") == 1

    printed = capsys.readouterr()
    assert '"facts": "EOFError at include/frazil_cli/main.py:' in printed.out
    assert "Ran out" not in printed.out
    assert "Aborted" not in printed.out + printed.err


def test_an_error_without_a_message_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail_unexpectedly(AssertionError())

    assert "Unexpected: AssertionError; its message is not shown" in capsys.readouterr().err
