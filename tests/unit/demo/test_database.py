"""The demonstration's PostgreSQL."""

from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_demo import database


def test_without_postgresql_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(database, "_DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(StackError, match="PostgreSQL is not installed") as refusal:
        database.find_programs()

    assert "apt-get install postgresql" in refusal.value.next_step
