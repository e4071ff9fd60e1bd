"""What an erasure does not reach, said for people: older snapshots, Kafka, replays, rollbacks."""

from collections.abc import Iterator

import numpy as np
from pyiceberg.table.refs import SnapshotRefType

from frazil.branches import PREFIX
from frazil.coordinates import Coordinates
from frazil.erased_keys import RAW_KEY, ErasedKeys
from frazil.errors import FrazilError
from frazil.expiry import HOUR_MS
from frazil.maintained_tables import retention_window
from frazil.routing import derived_name
from frazil.streams import Stream
from frazil.workspace import Workspace


def describe_erasure(work: Workspace, what: str, gone: Coordinates, erased: ErasedKeys) -> str:
    """Write what is taken, and every place from where it can still be read or come back."""
    told = [*_list_remains(work), *_list_kafka(work, gone), *_list_blind(erased)]
    others = sorted(set(list_siblings(work.stream)) - {work.stream.stream})
    if others:
        told.append(f"other streams of the route may hold the key too: {', '.join(others)}")
    return "\n".join([what, *told])


def _list_remains(work: Workspace) -> Iterator[str]:
    window = retention_window(work)
    hours = max(window.expire_ms, window.rollback_ms) // HOUR_MS
    for name in (work.stream.table.name, work.stream.dead_letters_table):
        table = work.store.find(name)
        if table is None:
            continue
        refs = table.metadata.refs.items()
        tags = [ref for ref, each in refs if each.snapshot_ref_type == SnapshotRefType.TAG]
        staged = [ref for ref, _ in refs if ref.startswith(PREFIX) and ref not in tags]
        held = f", and the tags {', '.join(tags)} theirs until they age" if tags else ""
        yield (
            f"{name}: {len(table.metadata.snapshots)} snapshots that are there already keep what "
            f"they hold until expire_snapshots removes them, {hours} hours from now at the "
            f"earliest{held}"
        )
        if staged:
            yield (
                f"{name}: what {len(staged)} staging branches hold is not published yet and stays: "
                "erase once more when they are done"
            )


def _list_kafka(work: Workspace, gone: Coordinates) -> Iterator[str]:
    """Say what Kafka still has; an erasure does not wait for a broker."""
    yield (
        "a replay leaves out what was erased; records that come later or by a backfill, and a "
        "rollback to before the erasure, bring the key back: erase once more then"
    )
    if not gone:
        return
    kept = 0
    try:
        for topic in {topic for topic, _ in gone}:
            facts = work.kafka.fetch_topic(topic, "read_uncommitted")
            for number, partition in enumerate(facts.partitions):
                offsets = gone.get((topic, number))
                kept += int(np.sum(offsets >= partition.earliest)) if offsets is not None else 0
    except FrazilError:
        yield "Kafka did not answer; it keeps records until its own retention takes them"
        return
    yield f"Kafka still has {kept} of these records until its own retention takes them"


def _list_blind(erased: ErasedKeys) -> Iterator[str]:
    if not erased.raw:
        yield (
            "dead letters were found by the records above alone, not by what is in their values; "
            f"--key {RAW_KEY}=VALUE finds them by the record's own key"
        )


def list_siblings(stream: Stream) -> list[str]:
    """Name all streams of a stream's route, itself among them; none where there is no route."""
    route = stream.route
    if route is None:
        return []
    own = stream.stream
    rest = own if route.takes is None else own.removesuffix(derived_name("", route.takes))
    return [rest, *(derived_name(rest, value) for value in route.tables)]
