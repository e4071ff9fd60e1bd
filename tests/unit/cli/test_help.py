"""Every command says what it does, and shows one line to type."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import typer

from frazil_cli.main import app


def list_commands(commands: Mapping[str, Any], words: str) -> Iterator[tuple[str, str]]:
    """List the commands, also those of groups, with their help."""
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        if inner is None:
            yield f"{words} {name}", command.help or ""
        else:
            yield from list_commands(inner, f"{words} {name}")


COMMANDS = dict(list_commands(vars(typer.main.get_command(app))["commands"], "frazil"))


@pytest.mark.parametrize("words", COMMANDS)
def test_help_of_every_command_has_an_example(words: str) -> None:
    assert f"Example: {words}" in COMMANDS[words]


def test_commands_in_groups_are_found() -> None:
    assert {"frazil plan", "frazil stack up"} <= set(COMMANDS)
