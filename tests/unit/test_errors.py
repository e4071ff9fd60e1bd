"""Every error says what happened and what to do next, and the drawn tree is the true one."""

import ast
import re
from pathlib import Path

import pytest

from frazil import errors
from frazil.errors import FrazilError

PRODUCT = Path(errors.__file__).parent
NAMES = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, FrazilError)
}


def drawn_parents() -> dict[str, str]:
    """Read child → parent from the tree in the docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b", line)
        if match:
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            if depth:
                parents[match[2]] = path[-2]
    return parents


def raised_calls() -> list[tuple[str, ast.Call]]:
    """List every call of one of our errors in the product, with its place."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in PRODUCT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in NAMES
    ]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    true = {name: found.__mro__[1].__name__ for name, found in NAMES.items()}

    assert drawn_parents() == {n: p for n, p in true.items() if n != "FrazilError"}


def test_an_error_ends_with_the_next_step() -> None:
    error = errors.RetentionGapError("records are gone", "`frazil accept-gap orders`")

    assert str(error) == "records are gone\nNext: `frazil accept-gap orders`"
    assert error.code == "RetentionGap"


def test_an_error_can_be_printed_whatever_a_schema_names() -> None:
    error = errors.SchemaMisfitError("field '\ud800'", "rename '\udfff' to é")

    assert str(error).encode() == "field '\\ud800'\nNext: rename '\\udfff' to é".encode()


@pytest.mark.parametrize("name", NAMES)
def test_only_what_may_pass_by_itself_is_retried(name: str) -> None:
    retried = issubclass(NAMES[name], errors.UnavailableError) or name in {
        "CommitContentionError",
        "JobFailedError",
        "UnexpectedError",
    }

    assert NAMES[name].retryable is retried


def test_every_error_that_the_product_raises_has_facts_and_a_next_step() -> None:
    incomplete = [place for place, call in raised_calls() if len(call.args) != 2]

    assert len(raised_calls()) > 50
    assert incomplete == []


def test_every_command_that_an_error_names_exists() -> None:
    from frazil_cli.main import app  # noqa: PLC0415 - the rest of this module needs no Typer

    known = {(c.name or c.callback.__name__).replace("_", "-") for c in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    named = {
        command
        for path in PRODUCT.rglob("*.py")
        for command in re.findall(r"`frazil ([a-z-]+)", path.read_text())
    }

    assert named - known == set()
