"""`frazil doctor` names the pools that a real Airflow lacks: tasks of such a pool never start."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from frazil.streams.loading import load_readable_streams
from frazil_cli.checks.check import Check
from frazil_cli.checks.doctor import check_pools
from frazil_stack.settings import load_settings

AIRFLOW = Path(sys.executable).with_name("airflow")


def airflow(*words: str) -> None:
    """Run a command of the Airflow that the environment names."""
    subprocess.run([str(AIRFLOW), *words], check=True, capture_output=True)


def checks() -> list[Check]:
    settings = load_settings()
    return [*check_pools(settings, load_readable_streams(settings.streams)[0])]


@pytest.fixture
def streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home, an Airflow of its own without a database, and two streams."""
    folder = tmp_path / "streams"
    folder.mkdir()
    for name in ("orders", "returns"):
        stream = {
            "stream": name,
            "owner": "data-platform@example.org",
            "source": {"topic": name},
            "value": {"columns": {"id": "long!"}},
            "table": {"name": f"shop.{name}"},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(stream))
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FRAZIL_STREAMS", str(folder))
    monkeypatch.setenv("FRAZIL_TABLE_POOLS", "true")
    database = f"sqlite:///{tmp_path}/airflow.db"
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", database)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("streams")
def test_missing_pools_are_named_with_the_commands_that_create_them() -> None:
    airflow("db", "migrate")
    airflow("pools", "set", "frazil_shop_orders", "1", "one writer")

    [found] = checks()

    assert (found.name, found.is_good) == ("Pools", False)
    assert "frazil_shop_returns" in found.detail
    assert "frazil_shop_orders" not in found.detail
    assert found.fix == '`airflow pools set frazil_shop_returns 1 "one writer"`'
    airflow(*shlex.split(found.fix.strip("`"))[1:])
    assert [check.is_good for check in checks()] == [True]


@pytest.mark.slow
@pytest.mark.usefixtures("streams")
def test_an_airflow_that_lists_no_pools_fails_the_check() -> None:
    [found] = checks()

    assert (found.is_good, "did not list its pools" in found.detail) == (False, True)
    assert "`airflow pools list`" in found.fix


@pytest.mark.usefixtures("streams")
def test_without_the_setting_no_pool_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FRAZIL_TABLE_POOLS")

    assert checks() == []
