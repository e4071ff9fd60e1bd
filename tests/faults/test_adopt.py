"""Another writer's table is taken over on real parts, and the next batch goes on exactly there."""

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from conftest import Lab, good_values
from support.foreign_tables import WRITERS

from faults.judges import assert_audited
from faults.legacy import WHO, Legacy, filled
from frazil.ledger.recovery_point import keys

pytestmark = pytest.mark.stack


@pytest.mark.storm(3)
@pytest.mark.parametrize("writer", WRITERS)
def test_no_record_is_lost_or_doubled_by_a_change_of_writers(legacy: Legacy, writer: str) -> None:
    filled(legacy, writer)
    legacy.take_over()

    plan = legacy.lab.frazil("plan", legacy.lab.stream, "--json")
    legacy.lab.drain()

    assert json.loads(plan.out)["ranges"] == {legacy.lab.topic: {"0": [20, 30], "1": [20, 30]}}
    assert legacy.kinds() == ["", "", keys.ADOPT, keys.INGEST]
    legacy.assert_exactly_once()


@pytest.mark.core
def test_everything_goes_on_after_an_adoption(legacy: Legacy) -> None:
    """Bad records, more batches, compaction over both kinds of rows, replay, expiry, questions."""
    lab = legacy.lab
    filled(legacy)
    legacy.take_over()
    lab.produce([b"no json", *good_values(99, start=1000)])
    lab.drain()
    lab.produce(good_values(40, start=2000))
    lab.drain()

    maintained = lab.frazil("maintain", lab.stream, "--json")
    replayed = lab.frazil("replay", lab.stream, "--offsets", f"{lab.topic}:0:20-40", "--no-dry-run")
    below = lab.frazil("replay", lab.stream, "--offsets", f"{lab.topic}:0:10-30", "--json")
    back = lab.frazil("recover", lab.stream, "--to-offset", f"{lab.topic}:0:5", "--json")

    assert maintained.code == 0, maintained.out + maintained.err
    assert replayed.code == 0, replayed.out + replayed.err
    assert (below.code, json.loads(below.out)["error"]) == (1, "Target")
    assert (back.code, json.loads(back.out)["error"]) == (1, "Target")
    legacy.lab.drain()
    assert_audited(lab)
    audit = lab.frazil("audit", lab.stream)
    assert audit.code == 0, audit.out + audit.err
    assert "40 adopted rows not checked" in audit.out.replace("\n", " ")
    for question in ("status", "snapshots", "dead-letters"):
        assert lab.frazil(question, lab.stream).code == 0


def test_a_rollback_above_the_adoption_reads_again_and_doubles_nothing(legacy: Legacy) -> None:
    filled(legacy)
    adopted = json.loads(legacy.take_over().out)["snapshot_id"]
    legacy.lab.drain()

    back = legacy.lab.frazil(
        "recover", legacy.lab.stream, "--to-snapshot", str(adopted), *WHO, "--no-dry-run"
    )
    assert back.code == 0, back.out + back.err
    legacy.lab.drain()

    legacy.assert_exactly_once()


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", ["decide.before-commit", "decide.after-commit"])
def test_an_adoption_that_is_killed_is_done_once(legacy: Legacy, failpoint: str) -> None:
    filled(legacy)
    killed = legacy.adopt(*WHO, "--no-dry-run", FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9

    legacy.take_over()
    legacy.lab.drain()

    assert legacy.kinds().count(keys.ADOPT) == 1
    legacy.assert_exactly_once()


def refuse(legacy: Legacy, error: str, *arguments: str) -> dict[str, str]:
    """Try to adopt in earnest; see that it is refused by this error and nothing was written."""
    before = legacy.table.metadata_location
    run = legacy.adopt(*WHO, "--no-dry-run", *arguments)
    assert run.code == 1, run.out + run.err
    answer: dict[str, str] = json.loads(run.out)
    assert answer["error"] == error, answer
    assert legacy.table.metadata_location == before
    return answer


def test_a_record_that_the_other_writer_lost_is_found_and_given_up_by_name(
    legacy: Legacy,
) -> None:
    legacy.create()
    lost = [r for r in legacy.read_topic() if (r["partition"], r["offset"]) != (1, 3)]
    legacy.write(lost)

    answer = refuse(legacy, "NotAdoptable")

    assert f"1 record that Kafka still delivers: {legacy.lab.topic}:1:3" in answer["facts"]
    legacy.take_over("--accept-holes")
    head = legacy.table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    told = json.loads(head.summary[keys.ADOPTED])
    assert told["holes"] == {"lost": 1, "unknown": 0, "empty": 0}
    legacy.lab.produce(good_values(10, start=1000))
    legacy.lab.drain()
    assert legacy.lab.frazil("audit", legacy.lab.stream).code == 0


def test_marks_of_transactions_are_no_holes(legacy: Legacy) -> None:
    producer = Producer(
        {"bootstrap.servers": legacy.lab.stack.bootstrap, "transactional.id": legacy.lab.topic}
    )
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        value = json.dumps({"id": 1000 + number, "name": "t", "amount": 1.0})
        producer.produce(legacy.lab.topic, value=value.encode(), partition=0)
        producer.flush(30)
        producer.abort_transaction(30) if number % 2 else producer.commit_transaction(30)
    legacy.create()
    rows = legacy.read_topic()
    legacy.write(rows)

    shown = json.loads(legacy.adopt().out)
    legacy.take_over()

    assert "6 offset holes without a record in Kafka" in shown["text"], shown["text"]
    legacy.lab.produce(good_values(10, start=2000))
    legacy.lab.drain()
    legacy.assert_exactly_once()


def test_a_topic_that_was_created_again_is_refused(legacy: Legacy) -> None:  # D4, D5
    filled(legacy)
    lab = legacy.lab
    admin = lab.admin
    admin.delete_topics([lab.topic])[lab.topic].result(60)
    recreate(lab)
    lab.produce(good_values(10))
    assert "ends at 5" in refuse(legacy, "OffsetsWentBack")["facts"]

    lab.produce(good_values(90))

    assert "these are different records" in refuse(legacy, "TopicRecreated")["facts"]


def recreate(lab: Lab) -> None:
    """Create the topic as soon as the deleted one is gone."""
    import stamina  # noqa: PLC0415 - only here
    from confluent_kafka import KafkaException  # noqa: PLC0415

    for attempt in stamina.retry_context(on=KafkaException, attempts=20, timeout=30):
        with attempt:
            lab.create_topic()


def test_what_kafka_lost_before_it_was_read_is_refused(legacy: Legacy) -> None:
    filled(legacy)
    place = TopicPartition(legacy.lab.topic, 1, 25)
    admin = legacy.lab.admin
    admin.delete_records([place])[place].result(15)

    answer = refuse(legacy, "RetentionGap")

    assert f"{legacy.lab.topic}:1:20-25" in answer["facts"]
    legacy.take_over("--accept-holes")
    legacy.lab.drain()
    assert legacy.lab.frazil("audit", legacy.lab.stream).code == 0


def test_an_adopted_table_is_compared_by_both_kinds_of_coordinates(legacy: Legacy) -> None:
    """The old rows by the other writer's columns, the new ones by ours: nothing is missing."""
    lab = legacy.lab
    filled(legacy)
    legacy.take_over()
    lab.drain()
    twin = legacy.foreign.of(name=f"legacy.{lab.stream}").create()
    twin.write(*legacy.read_topic())

    same = lab.frazil("compare", lab.stream, twin.name, "--rows-only", "--json")
    assert same.code == 0, same.out + same.err
    assert sum(p["matched"] for p in json.loads(same.out)["partitions"]) == 60

    twin.table.delete("id == 41")
    assert lab.frazil("compare", lab.stream, twin.name, "--rows-only").code == 1
