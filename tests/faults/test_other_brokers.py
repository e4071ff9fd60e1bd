"""A broker that is another one, or has lost records (docs/faults.md, D6, D13)."""

import os
from pathlib import Path

import pytest
from conftest import Lab, good_values

from faults.batches import Batches
from faults.brokers import own_broker, read_from
from frazil.errors import ClusterChangedError, OffsetsWentBackError
from frazil.ingest.messages import NothingToRead
from frazil.ingest.pipeline import plan_next_batch

pytestmark = pytest.mark.stack


def test_d6_a_cluster_that_mirrors_the_topic_at_other_offsets_is_refused(
    lab: Lab, batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.create_topic()
    assert isinstance(batches.run(), NothingToRead)
    lab.produce(good_values(20))
    head = batches.table.current_snapshot()

    with own_broker(tmp_path / "home") as stack:
        mirrored = read_from(stack, batches, monkeypatch)
        mirrored.lab.create_topic()
        mirrored.lab.produce(good_values(12))
        with pytest.raises(ClusterChangedError, match="offsets of two clusters"):
            plan_next_batch(mirrored.open())

    monkeypatch.delenv("AIRFLOW_CONN_KAFKA_DEFAULT")
    assert batches.table.current_snapshot() == head
    assert batches.plan().ranges == {lab.topic: {0: (0, 10), 1: (0, 10)}}


def test_d13_a_log_that_ends_before_the_recovery_point_is_refused_while_it_fills_again(
    batches: Batches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with own_broker(home) as stack:
        cut = read_from(stack, batches, monkeypatch)
        cut.lab.create_topic(partitions=1)
        cut.produce(good_values(10))
        cut.produce(good_values(10))
        cut.publish()
        head = cut.table.current_snapshot()
    tear_last_batch(home, cut.lab.topic)

    with own_broker(home) as stack:
        cut = read_from(stack, batches, monkeypatch)
        for _ in range(2):
            with pytest.raises(OffsetsWentBackError, match=r"ends at offset 1[05], .* read to 20"):
                plan_next_batch(cut.open())
            cut.produce(good_values(5))

        assert cut.table.current_snapshot() == head


def tear_last_batch(home: Path, topic: str) -> None:
    """Take the last byte of a partition's log, as a power cut does with what was not flushed.

    The broker then keeps the records up to the last batch that is whole.
    """
    [log] = home.rglob(f"{topic}-0/*.log")
    os.truncate(log, log.stat().st_size - 1)
    (log.parents[1] / ".kafka_cleanshutdown").unlink()
