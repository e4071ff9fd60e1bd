"""Folders that the environment sets."""

from pathlib import Path

import pytest

from frazil.environment import home_dir, streams_dir


def test_folders_can_be_pointed_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path / "files"))

    assert (home_dir(), streams_dir()) == (tmp_path, tmp_path / "files")
