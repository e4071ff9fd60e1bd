"""The state of a stream in snapshot summaries, and its hint in the table's properties."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from frazil.errors import UnknownStateError
from frazil.ledger import keys
from frazil.ledger.keys import pack, unpack
from frazil.ledger.offsets import NextOffsets

VERSION = 1


@dataclass(frozen=True)
class StreamState:
    """A stream's progress: epoch, batch id, next offsets, topic ids and cluster id."""

    epoch: int
    batch: str
    offsets: NextOffsets
    topic_ids: Mapping[str, str]
    cluster_id: str

    def moved(self, epoch: int, batch: str, offsets: NextOffsets) -> "StreamState":
        """Return the state after one more batch."""
        return replace(self, epoch=epoch, batch=batch, offsets=offsets)


@dataclass(frozen=True)
class RowChange:
    """A snapshot that changed rows without a state of its own: an erasure or a replay."""

    kind: str
    snapshot_id: int


@dataclass(frozen=True)
class Hint:
    """The hint property: never the truth, but it reveals a rollback by another tool.

    `snapshot_id` holds the newest state; `change` is the newest change of rows after it.
    """

    epoch: int
    batch: str
    snapshot_id: int
    change: RowChange | None = None

    @property
    def newest_id(self) -> int:
        """Return the newest snapshot that the hint names."""
        return self.change.snapshot_id if self.change else self.snapshot_id


def encode_state(state: StreamState) -> str:
    """Encode the value of `frazil.state.<stream>`."""
    text = json.dumps(
        {
            "v": VERSION,
            "epoch": state.epoch,
            "batch": state.batch,
            "offsets": {topic: list(values) for topic, values in sorted(state.offsets.items())},
            "topic-ids": dict(sorted(state.topic_ids.items())),
            "cluster-id": state.cluster_id,
        },
        separators=(",", ":"),
    )
    return pack(text)


def parse_state(text: str, where: str = "a snapshot", stream: str = "STREAM") -> StreamState:
    """Parse what `encode_state` wrote; `where` and `stream` are for the error.

    Raises:
        UnknownStateError: this release cannot read the state.
    """
    try:
        return _read_plain(text)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise UnknownStateError(
            f"{where} has a state that cannot be read ({type(error).__name__}: {error}): "
            f"{text[:200]}; nothing was written",
            "run the newer release that wrote it; if it was edited by hand, roll the table back to "
            f"an earlier snapshot with Spark, then run `frazil recover {stream} --reingest`",
        ) from error


def _read_plain(text: str) -> StreamState:
    plain = json.loads(unpack(text))
    if plain["v"] != VERSION:
        message = f"version {plain['v']}, this release reads {VERSION}"
        raise ValueError(message)
    return StreamState(
        epoch=int(plain["epoch"]),
        batch=plain["batch"],
        offsets={topic: tuple(map(int, ends)) for topic, ends in plain["offsets"].items()},
        topic_ids=plain["topic-ids"],
        cluster_id=plain["cluster-id"],
    )


def encode_hint(hint: Hint) -> str:
    """Encode the value of the table property `frazil.hint.<stream>`."""
    plain: dict[str, object] = {
        "epoch": hint.epoch,
        "batch": hint.batch,
        "snapshot-id": hint.snapshot_id,
    }
    if hint.change is not None:
        plain["change"] = {"kind": hint.change.kind, "snapshot-id": hint.change.snapshot_id}
    return json.dumps(plain, separators=(",", ":"))


def parse_hint(text: str, where: str = "a table") -> Hint:
    """Parse what `encode_hint` wrote; `where` is for the error.

    Raises:
        UnknownStateError: this release cannot read the hint.
    """
    try:
        plain = json.loads(text)
        change = plain.get("change")
        return Hint(
            int(plain["epoch"]),
            plain["batch"],
            int(plain["snapshot-id"]),
            RowChange(change["kind"], int(change["snapshot-id"])) if change else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownStateError(
            f"{where} has a property frazil.hint.… that cannot be read ({type(error).__name__}: "
            f"{error}): {text[:200]}; nothing was written",
            "run `frazil audit` on a copy of the table without the property; if it finds nothing, "
            "unset the property here: the next batch writes it again",
        ) from error


def hint_properties(states: Mapping[str, StreamState], snapshot_id: int) -> dict[str, str]:
    """Return the hint properties for the states that a snapshot holds."""
    return {
        keys.hint_key(stream): encode_hint(Hint(state.epoch, state.batch, snapshot_id))
        for stream, state in states.items()
    }


def change_hints(
    properties: Mapping[str, str], summary: Mapping[str, str], snapshot_id: int
) -> dict[str, str]:
    """Return the hint properties that name a snapshot which changes rows; empty for other kinds.

    An erasure concerns every stream of the table, other changes only their own. A `carry` names
    itself instead of the change below it, which may expire.
    """
    kind, own = summary.get(keys.KIND), summary.get(keys.STREAM)
    hints: dict[str, str] = {}
    for key, text in properties.items():
        stream = key.removeprefix(keys.HINT_PREFIX)
        if stream == key or kind not in {*keys.CHANGE_KINDS, keys.CARRY}:
            continue
        hint = parse_hint(text, f"stream {stream}: the table")
        if kind == keys.CARRY and hint.change and keys.state_key(stream) in summary:
            change = RowChange(hint.change.kind, snapshot_id)
            hints[key] = encode_hint(replace(hint, snapshot_id=snapshot_id, change=change))
        elif kind == keys.ERASE or (kind != keys.CARRY and stream == own):
            hints[key] = encode_hint(replace(hint, change=RowChange(str(kind), snapshot_id)))
    return hints
