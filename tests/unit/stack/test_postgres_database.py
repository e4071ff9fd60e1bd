"""The PostgreSQL of the demonstration and of drills."""

from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack import database
from frazil_stack.drills.source_drill import explain_no_database


def test_without_postgresql_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(database, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StackError, match="PostgreSQL is not installed") as refusal:
        database.find_programs()

    assert "apt-get install postgresql" in refusal.value.next_step
    assert explain_no_database() == (
        "the drill needs a PostgreSQL: PostgreSQL is not installed: there is no program initdb"
    )
