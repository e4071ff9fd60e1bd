"""`frazil status` on real parts: lag and both clocks in one look, also when a part is down."""

import json

import pytest
from conftest import Lab, good_values

pytestmark = pytest.mark.stack

DAY_SECONDS = 86_400


def ask(lab: Lab, **environment: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the stream's status and its freshness."""
    answer = lab.frazil("status", lab.stream, "--json", **environment).json
    assert isinstance(answer, list)
    fresh = answer[0]["freshness"]
    assert isinstance(fresh, dict)
    return answer[0], fresh


@pytest.mark.core
def test_a_stream_with_unread_records_shows_both_clocks_and_when_they_would_be_lost(
    lab: Lab,
) -> None:
    lab.write_stream(freshness={"warn_seconds": 3600, "fail_seconds": 7200})
    lab.create_topic(**{"retention.ms": str(7 * DAY_SECONDS * 1000)})
    lab.produce(good_values(20))
    lab.drain()
    _, read = ask(lab)
    lab.produce(good_values(6, start=20))

    status, fresh = ask(lab)

    assert (read["stream_clock_seconds"], read["time_to_loss_seconds"]) == (None, None)
    assert (status["state"], status["lag"], status["rows"]) == ("within its limits", 6, 20)
    assert (fresh["level"], fresh["cause"]) == ("ok", "up_to_date")
    assert isinstance(fresh["stream_clock_seconds"], int)
    assert isinstance(fresh["table_clock_seconds"], int)
    assert fresh["stream_clock_seconds"] <= fresh["table_clock_seconds"]
    assert 6 * DAY_SECONDS < int(str(fresh["time_to_loss_seconds"])) <= 7 * DAY_SECONDS
    partitions = status["partitions"]
    assert isinstance(partitions, list)
    covered = {p["partition"]: p["retention_covers_seconds"] for p in partitions}
    assert covered.keys() == {0, 1}
    assert all(6 * DAY_SECONDS < seconds <= 7 * DAY_SECONDS for seconds in covered.values())
    shown = lab.frazil("status", lab.stream).out
    assert all(f"{lab.topic}:{number}" in shown for number in covered)


def test_each_partition_is_shown_with_what_waits_also_where_kafka_deletes_nothing(lab: Lab) -> None:
    lab.create_topic(12, **{"retention.ms": "-1"})
    lab.produce(good_values(12), partitions=12)
    lab.drain()
    lab.produce(good_values(7, start=12), partitions=1)

    shown = lab.frazil("status", lab.stream).out

    lines = [line for line in shown.splitlines() if f"{lab.topic}:" in line]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert cells[0][1:] == ["1", "8", "7", ""]
    assert [row[1:] for row in cells[1:]] == [["1", "1", "0", ""]] * 9
    assert "… and 2 more: --json lists all of them" in shown


def test_a_timeline_that_could_not_be_read_ends_with_one(lab: Lab) -> None:
    lab.create_topic()
    lab.drain()
    (lab.folder / "broken.yaml").write_text("stream: broken")
    alone = lab.frazil("timeline", "--stream", lab.stream)
    everything = lab.frazil("timeline")
    gone = json.dumps({"conn_type": "iceberg", "extra": {"catalog": "lake", "type": "sql"}})

    without = lab.frazil("timeline", "--stream", lab.stream, AIRFLOW_CONN_ICEBERG_DEFAULT=gone)

    assert alone.code == 0, alone.err
    assert everything.code == without.code == 1
    assert "broken.yaml" in everything.err
    assert "bootstrap" in everything.out, "what can be read is shown"
    assert "Next: " in without.err
