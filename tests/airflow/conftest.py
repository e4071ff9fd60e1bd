"""An Airflow of its own for these tests: a temporary home, no database, no examples."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag

PROJECT = Path(__file__).parents[2]
HOME = tempfile.mkdtemp(prefix="frazil-airflow-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)

# Airflow reads these once, when it is first imported: later than this line.
os.environ.update(
    {
        "AIRFLOW_HOME": HOME,
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": f"{HOME}/plugins",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME}/none.db",
    }
)

STREAM = """\
stream: {name}
owner: {owner}
source: {{topic: {name}}}
value: {{convert: json, columns: {{id: long!}}}}
table: {{name: shop.{name}}}
batch: {{schedule: "{schedule}"}}
maintenance: {{schedule: "41 3 * * *"}}
"""

WriteStream = Callable[..., Path]
Parse = Callable[[], "DagBag"]


@pytest.fixture(scope="session", autouse=True)
def logging_of_airflow() -> None:
    """Import Airflow before a test reads logs: it replaces the handlers of the root logger."""
    import frazil_airflow.freshness_watch  # noqa: F401, PLC0415 - after its environment


@pytest.fixture
def write_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteStream:
    """Write sound stream files into a folder of the test's own; arguments change one value each."""
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))

    def write(name: str, owner: str = "shop@example.org", schedule: str = "*/5 * * * *") -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(STREAM.format(name=name, owner=owner, schedule=schedule))
        return path

    return write


@pytest.fixture
def parse() -> Parse:
    """Parse the project's DAG files as the DAG processor does."""

    def parse_dags() -> "DagBag":
        from airflow.dag_processing.dagbag import DagBag  # noqa: PLC0415 - after the environment

        return DagBag(PROJECT / "dags")

    return parse_dags
