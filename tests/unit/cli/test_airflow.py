"""`frazil airflow init` writes new files only."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from frazil.errors import ConfigurationError
from frazil_cli.main import app


def init(folder: Path, *options: str) -> "tuple[str, str, BaseException | None]":
    """Run the command; return standard output, standard error and the error."""
    done = CliRunner().invoke(app, ["airflow", "init", str(folder), *options])
    return done.stdout, done.stderr, done.exception


def files_of(folder: Path) -> set[str]:
    """List the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_new_files_are_written_once_and_the_settings_are_lines_of_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "my dags"
    printed, first, _ = init(folder)
    again, second, _ = init(folder)

    assert {"frazil_dags.py", "frazil_streams/flights.yaml"} < files_of(folder)
    assert f"wrote {folder}/frazil_dags.py" in first
    assert (again, second) == (printed, f"{folder} has the files already\n")
    assert f"export FRAZIL_STREAMS='{folder}/frazil_streams'\n" in printed
    assert all(line.startswith(("export ", "# ")) for line in printed.splitlines())


def test_a_dry_run_lists_the_files(tmp_path: Path) -> None:
    _, listed, _ = init(tmp_path, "--dry-run")

    assert f"would write {tmp_path}/frazil_dags.py\n" in listed
    assert files_of(tmp_path) == set()


def test_a_changed_file_is_kept_and_nothing_else_is_written(tmp_path: Path) -> None:
    changed = tmp_path / "frazil_dags.py"
    changed.write_text("# mine\n")

    _, _, error = init(tmp_path)

    assert isinstance(error, ConfigurationError)
    assert f"{changed}: exists with other content; nothing was written" in str(error)
    assert files_of(tmp_path) == {"frazil_dags.py"}


@pytest.mark.parametrize("content", [None, b"\xff"], ids=["a folder", "no text"])
def test_what_is_no_text_is_kept(tmp_path: Path, content: bytes | None) -> None:
    there = tmp_path / "frazil_dags.py"
    there.mkdir() if content is None else there.write_bytes(content)

    _, _, error = init(tmp_path)

    assert isinstance(error, ConfigurationError)
    assert str(there) in error.facts
    assert list(tmp_path.iterdir()) == [there]


def test_a_folder_that_cannot_be_made_is_told() -> None:
    _, _, error = init(Path("/proc/none"))

    assert isinstance(error, ConfigurationError)
    assert error.facts.startswith("/proc/none: cannot be read or written: ")


def test_a_folder_of_streams_gets_no_example(tmp_path: Path) -> None:
    (tmp_path / "frazil_streams").mkdir()

    init(tmp_path)

    assert files_of(tmp_path) == {"frazil_dags.py", "frazil_check_streams.py"}
