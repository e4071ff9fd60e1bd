"""Docstrings say what a function does in the words of PEP 257, not in those of a conversation."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
FILES = sorted(
    path for name in ("include", "spark_jobs", "dags") for path in (PROJECT / name).rglob("*.py")
)
ODD = ("Give ", "Keep ", "Let ", "Say ", "See what", "Take a", "Take the", "Tell ")
"""First words of functions that return, store, allow or describe something."""


def find_odd(source: str) -> Iterator[str]:
    """Yield the functions and classes whose docstring begins with an odd word."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (ast.get_docstring(node) or "").startswith(ODD):
            yield node.name


@pytest.mark.parametrize("word", ["Give the rows.", "Let a merge wait.", "Tell what happened."])
def test_an_odd_word_is_found(word: str) -> None:
    assert [*find_odd(f'def f():\n    """{word}"""\n')] == ["f"]


def test_docstrings_begin_with_what_a_function_does() -> None:
    found = {str(path.relative_to(PROJECT)): [*find_odd(path.read_text())] for path in FILES}

    assert {name: names for name, names in found.items() if names} == {}
