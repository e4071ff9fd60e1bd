"""What is wrong with stream files is told by `frazil streams` and `frazil status`, with exit 1."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.lake import Lake, make_stream
from support.stream_files import GOOD

from frazil.kafka.cluster import KafkaLog
from frazil.streams.models import suite_path
from frazil_cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a good stream file and two broken ones; its table's catalog is empty."""
    for name, text in (("orders", GOOD), ("refunds", "stream: ["), ("sales", "- a")):
        (tmp_path / f"{name}.yaml").write_text(text)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}",
    }
    monkeypatch.setenv("FRAZIL_STREAMS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"extra": catalog}))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Run the command as a shell does, and give its exit code."""
    monkeypatch.setattr("sys.argv", ["frazil", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["streams", "status"])
def test_every_broken_file_is_named_beside_the_good_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code = run(monkeypatch, command)

    told = capsys.readouterr()
    assert code == 1
    assert "demo.orders" in told.out
    assert "refunds.yaml: not valid YAML" in told.err
    assert "sales.yaml: a stream file must be a mapping" in told.err


@pytest.mark.usefixtures("folder")
def test_programs_read_the_broken_files_after_the_streams(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(monkeypatch, "status", "--json")

    good, *broken = json.loads(capsys.readouterr().out)
    assert (code, good["stream"]) == (1, "orders")
    assert [each["error"] for each in broken] == ["StreamFile", "StreamFile"]
    assert "refunds.yaml" in broken[0]["facts"]


def test_a_status_without_broken_files_is_done(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    for name in ("refunds", "sales"):
        (folder / f"{name}.yaml").unlink()

    assert run(monkeypatch, "status") == 0


@pytest.mark.parametrize("command", ["streams", "status"])
def test_a_folder_that_is_not_there_is_no_empty_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("FRAZIL_STREAMS", "/nope")

    code = run(monkeypatch, command)

    told = capsys.readouterr()
    assert (code, told.out) == (1, "")
    assert "/nope: no such folder of stream files" in told.err
    assert "FRAZIL_STREAMS" in told.err


STREAMS = ("first", "second", "third", "fourth", "fifth", "sixth")


@pytest.fixture
def frozen(lake: Lake, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """Begin six streams whose broker accepts connections and never answers."""
    for path in folder.glob("*.yaml"):
        path.unlink()
    for name in STREAMS:
        table = f"demo.{name}"
        text = GOOD.replace("orders}", f"{name}}}").replace("stream: orders", f"stream: {name}")
        (folder / f"{name}.yaml").write_text(text.replace("demo.orders", table))
        lake.begin(make_stream(name, table={"name": table}))
    preset = lake.store.preset
    catalog = {"extra": {"catalog": preset.name, **preset.properties}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kafka = {"extra": {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
        yield STREAMS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Collect the topics of each request."""
    found, fetch = list[Sequence[str]](), KafkaLog.fetch_topics

    def note(self: KafkaLog, names: Sequence[str], *others: object) -> object:
        found.append(names)
        return fetch(self, names, *others)

    monkeypatch.setattr(KafkaLog, "fetch_topics", note)
    return found


def test_streams_of_a_frozen_broker_are_asked_at_the_same_time_and_fail_the_command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    frozen: tuple[str, ...],
    asked: list[Sequence[str]],
) -> None:
    started = time.monotonic()

    code = run(monkeypatch, "status", "--json")

    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert len(asked) == 2  # of one broker
    assert time.monotonic() - started < 2.0 * len(frozen)
    assert sorted(each["stream"] for each in found) == sorted(frozen)
    assert {each["state"] for each in found} == {"KafkaUnavailable"}
    assert all("127.0.0.1" in each["problem"] for each in found)


@pytest.mark.usefixtures("frozen")
def test_a_stream_does_not_wait_long_for_what_others_find(
    monkeypatch: pytest.MonkeyPatch, asked: list[Sequence[str]]
) -> None:
    monkeypatch.setattr("frazil.observability.watch.WAIT_SECONDS", 0.1)

    run(monkeypatch, "status", "--json")

    assert len(asked) == len(STREAMS)


@pytest.mark.usefixtures("frozen")
def test_a_stream_that_does_not_answer_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("frazil_cli.output.READ_SECONDS", 0.1)

    code = run(monkeypatch, "status", "first")

    assert code == 1
    assert "stream first: no answer in 0 s" in capsys.readouterr().err


def test_suites_are_checked_beside_the_stream_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("refunds", "sales"):
        (folder / f"{name}.yaml").unlink()
    (folder / "orders.yaml").write_text(f"{GOOD}quality: {{suite: orders}}\n")
    unknown = {"type": "nonsense", "kwargs": {}}
    misfit = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "nowhere"}}
    told = []
    for content in (None, unknown, misfit):
        if content is not None:
            path = suite_path(folder, "orders")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"name": "orders", "expectations": [content]}))
        told.append((run(monkeypatch, "streams"), capsys.readouterr().err))

    assert [code for code, _ in told] == [1, 1, 1]
    assert "No such file" in told[0][1]
    assert "'nonsense' is not an expectation" in told[1][1]
    assert "the stream has no such column" in told[2][1]
