"""What the stack is told from outside: parts, folders, sizes."""

from pathlib import Path

import pytest

from frazil.errors import StackError
from frazil_stack.settings import DEFAULT_PARTS, load_settings, parse_parts


@pytest.mark.parametrize(
    ("only", "without", "expected"),
    [
        pytest.param(None, None, DEFAULT_PARTS, id="everything unless told otherwise"),
        pytest.param("kafka,spark", None, ("kafka", "spark"), id="only some"),
        pytest.param("spark, kafka", None, ("kafka", "spark"), id="order is the stack's own"),
        pytest.param(None, "airflow", ("kafka", "spark"), id="without one"),
        pytest.param("registry", None, ("registry",), id="what is optional, by name"),
        pytest.param("kafka,airflow", "airflow", ("kafka",), id="both lists count"),
    ],
)
def test_parts_are_chosen_by_two_lists(
    only: str | None, without: str | None, expected: tuple[str, ...]
) -> None:
    assert parse_parts(only, without) == expected


@pytest.mark.parametrize(
    ("only", "without", "said"),
    [
        pytest.param("kafak", None, "kafak", id="misspelt"),
        pytest.param(None, "spark_connect", "spark_connect", id="a service is no part"),
        pytest.param("kafka", "kafka", "no part is left", id="nothing left"),
    ],
)
def test_a_wrong_choice_of_parts_is_refused_by_name(
    only: str | None, without: str | None, said: str
) -> None:
    with pytest.raises(StackError, match=said) as refusal:
        parse_parts(only, without)
    assert "kafka, registry, spark, airflow" in refusal.value.next_step


def test_the_home_is_absolute_and_holds_the_jars_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_HOME", "state")

    settings = load_settings({})

    assert settings.home == tmp_path.resolve() / "state"
    assert settings.jars == settings.home / "jars"
    assert settings.warehouse == f"file://{settings.home}/lake/warehouse"


def test_a_link_to_the_home_names_the_same_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "link"))

    assert load_settings({}).home == (tmp_path / "real").resolve()


@pytest.mark.parametrize("name", ["with space", "with,comma", "with:colon", "with%percent"])
def test_a_home_that_a_service_would_misread_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / name))

    with pytest.raises(StackError, match="FRAZIL_HOME"):
        load_settings({})


@pytest.mark.parametrize("memory", ["3", "3 g", "0g", "3gb", "-Xmx3g"])
def test_a_memory_that_java_would_misread_is_refused(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))

    with pytest.raises(StackError, match="FRAZIL_SPARK_MEMORY"):
        load_settings({"FRAZIL_SPARK_MEMORY": memory})


@pytest.mark.parametrize("seconds", ["0", "-1", "20s", "1.5", "10000"])
def test_a_pace_that_airflow_would_misread_is_refused(
    seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))

    assert load_settings({"FRAZIL_DAG_SCAN_SECONDS": "60"}).dag_scan_seconds == "60"
    with pytest.raises(StackError, match="FRAZIL_DAG_SCAN_SECONDS"):
        load_settings({"FRAZIL_DAG_SCAN_SECONDS": seconds})


@pytest.mark.parametrize(("streams", "seconds"), [(0, "20"), (6, "20"), (50, "150"), (200, "300")])
def test_many_streams_are_looked_at_less_often(
    streams: int, seconds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    for number in range(streams):
        (tmp_path / f"s{number}.yaml").touch()

    assert load_settings({}).dag_scan_seconds == seconds


def test_an_optional_part_joins_the_others_when_asked_for() -> None:
    assert parse_parts("kafka,spark", None, "registry") == ("kafka", "registry", "spark")
