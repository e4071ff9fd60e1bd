"""Every file can be read in one sitting and named in one noun (CONTRIBUTING.md, "Size")."""

import ast
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FOLDERS = ("include", "spark_jobs", "dags", "plugins")
FILES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 40
MAX_COMMAND_LINES = 50
"""A command has a parameter for each of its options."""
MAX_PARAMETERS = 6
FORBIDDEN = {"utils", "helper", "helpers", "common", "misc", "manager", "handler", "processor"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(path: Path) -> list[Function | ast.ClassDef]:
    """List the functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def functions(path: Path) -> list[Function]:
    """List the functions of a file."""
    return [node for node in definitions(path) if not isinstance(node, ast.ClassDef)]


def lines_of(function: Function) -> int:
    """Count the lines of a function, from `def` to its end."""
    return (function.end_lineno or 0) - function.lineno + 1


def parameters_of(function: Function) -> int:
    """Count what a caller may pass; options of a command are named by those who need them."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    plain = [a for a in named if not (a.annotation and "typer.Option" in ast.unparse(a.annotation))]
    return sum(1 for argument in plain if argument.arg not in {"self", "cls"})


def words_of(name: str) -> set[str]:
    """Split `CamelCase` and `snake_case` into words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}


def name_of(path: Path) -> str:
    """Name a file by its path in the project."""
    return str(path.relative_to(PROJECT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_stays_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    is_command = path.parent.name == "frazil_cli"
    most = MAX_COMMAND_LINES if is_command else MAX_FUNCTION_LINES
    long = {f.name: lines_of(f) for f in functions(path) if lines_of(f) > most}
    wide = {f.name: n for f in functions(path) if (n := parameters_of(f)) > MAX_PARAMETERS}

    assert lines <= MAX_MODULE_LINES
    assert long == {}, f"functions above {most} lines"
    assert is_command or wide == {}, f"functions with more than {MAX_PARAMETERS} parameters"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_has_a_name_that_says_nothing(path: Path) -> None:
    names = [path.stem, path.parent.name, *(node.name for node in definitions(path))]

    assert [name for name in names if words_of(name) & FORBIDDEN] == []


def test_the_instruments_measure() -> None:
    source = "def f(self, a, /, b, *, c):\n    pass\n\n\nclass DataProcessor:\n    pass\n"
    function, found = ast.parse(source).body

    assert isinstance(function, ast.FunctionDef)
    assert isinstance(found, ast.ClassDef)
    assert (lines_of(function), parameters_of(function)) == (2, 3)
    assert words_of(found.name) & FORBIDDEN == {"processor"}
    assert words_of("my_utils") & FORBIDDEN == {"utils"}
