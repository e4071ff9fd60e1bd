"""The state of a stream as each snapshot carries it, and the hint beside it."""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from frazil.offsets import NextOffsets

PLAIN_LIMIT_BYTES = 4096
"""Above this a state is compressed: thousands of partitions must not bloat metadata (C15)."""

COMPRESSED = "z:"


@dataclass(frozen=True)
class StreamState:
    """Where a stream stands: epoch, batch, next offsets, and what it reads from."""

    epoch: int
    batch: str
    offsets: NextOffsets
    topic_ids: Mapping[str, str]
    cluster_id: str

    def moved(self, epoch: int, batch: str, offsets: NextOffsets) -> "StreamState":
        """Return the state after one more batch."""
        return replace(self, epoch=epoch, batch=batch, offsets=offsets)


@dataclass(frozen=True)
class Hint:
    """A table property: never the truth, but it shows what others rolled back."""

    epoch: int
    batch: str
    snapshot_id: int


def encode_state(state: StreamState) -> str:
    """Write a state as `frazil.state.<stream>`; zlib and base64 above 4 KiB."""
    text = json.dumps(
        {
            "v": 1,
            "epoch": state.epoch,
            "batch": state.batch,
            "offsets": {topic: list(values) for topic, values in sorted(state.offsets.items())},
            "topic-ids": dict(sorted(state.topic_ids.items())),
            "cluster-id": state.cluster_id,
        },
        separators=(",", ":"),
    )
    if len(text) <= PLAIN_LIMIT_BYTES:
        return text
    return COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def parse_state(text: str) -> StreamState:
    """Read what `encode_state` wrote."""
    if text.startswith(COMPRESSED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(COMPRESSED))).decode()
    plain = json.loads(text)
    return StreamState(
        epoch=plain["epoch"],
        batch=plain["batch"],
        offsets={topic: tuple(values) for topic, values in plain["offsets"].items()},
        topic_ids=plain["topic-ids"],
        cluster_id=plain["cluster-id"],
    )


def encode_hint(hint: Hint) -> str:
    """Write a hint as the table property `frazil.hint.<stream>`."""
    return json.dumps(
        {"epoch": hint.epoch, "batch": hint.batch, "snapshot-id": hint.snapshot_id},
        separators=(",", ":"),
    )


def parse_hint(text: str) -> Hint:
    """Read what `encode_hint` wrote."""
    plain = json.loads(text)
    return Hint(plain["epoch"], plain["batch"], plain["snapshot-id"])
