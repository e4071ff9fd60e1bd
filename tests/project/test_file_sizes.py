"""Every file can be read in one sitting and named in one noun (CONTRIBUTING.md, "Size")."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[2]
FOLDERS = ("include", "spark_jobs", "dags")
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


def find_offences(path: Path) -> Iterator[str]:
    """Yield what is too long, too wide or named by no noun in a file."""
    lines = len(path.read_text().splitlines())
    is_command = path.parent.name == "frazil_cli"
    most = MAX_COMMAND_LINES if is_command else MAX_FUNCTION_LINES
    if lines > MAX_MODULE_LINES:
        yield f"{lines} lines"
    for function in functions(path):
        if lines_of(function) > most:
            yield f"{function.name} has {lines_of(function)} lines"
        if parameters_of(function) > MAX_PARAMETERS and not is_command:
            yield f"{function.name} has {parameters_of(function)} parameters"
    names = [path.stem, path.parent.name, *(node.name for node in definitions(path))]
    yield from (f"the name {name} says nothing" for name in names if words_of(name) & FORBIDDEN)


def test_files_and_functions_stay_small_and_have_names_that_say_something() -> None:
    offences = {name_of(path): [*find_offences(path)] for path in FILES}

    assert {name: found for name, found in offences.items() if found} == {}


def test_files_of_tests_are_no_longer_than_modules() -> None:
    lengths = {f: len(f.read_text().splitlines()) for f in (PROJECT / "tests").rglob("*.py")}

    assert {name_of(f): n for f, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_the_instruments_measure() -> None:
    source = "def f(self, a, /, b, *, c):\n    pass\n\n\nclass DataProcessor:\n    pass\n"
    function, found = ast.parse(source).body

    assert isinstance(function, ast.FunctionDef)
    assert isinstance(found, ast.ClassDef)
    assert (lines_of(function), parameters_of(function)) == (2, 3)
    assert words_of(found.name) & FORBIDDEN == {"processor"}
    assert words_of("my_utils") & FORBIDDEN == {"utils"}
