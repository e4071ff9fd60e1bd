"""Names of everything that Frazil writes into tables, each said once (protocol.md)."""

import base64
import zlib

KIND = "frazil.kind"


BATCH_ID = "frazil.batch-id"


RANGES = "frazil.ranges"


ROWS_READ = "frazil.rows-read"


ROWS_WRITTEN = "frazil.rows-written"


ROWS_QUARANTINED = "frazil.rows-quarantined"


ROWS_SKIPPED = "frazil.rows-skipped"


ROWS_DELETED = "frazil.rows-deleted"


COUNTS = "frazil.counts"


COORDINATES = "frazil.coordinates"


LETTERS = "frazil.letters"


MIN_TIMESTAMP_MS = "frazil.min-timestamp-ms"


MAX_TIMESTAMP_MS = "frazil.max-timestamp-ms"


NEWEST_TIMESTAMP_MS = "frazil.newest-timestamp-ms"


ROWS_LATE = "frazil.rows-late"


LATE_BY_MS = "frazil.late-by-ms"


SCHEMA_IDS = "frazil.schema-ids"


UNNAMED_FIELDS = "frazil.unnamed-fields"


QUALITY = "frazil.quality"


ATTEMPT = "frazil.attempt"


CLOCK = "frazil.clock"


USAGE = "frazil.usage"


RUN_ID = "frazil.run-id"


VERSION = "frazil.version"


STREAM = "frazil.stream"


REASON = "frazil.reason"


BY = "frazil.by"


TARGET = "frazil.target"


LOST_RANGES = "frazil.lost-ranges"


LOST_WINDOWS = "frazil.lost-windows"


ABANDONED_HEAD = "frazil.abandoned-head"


ADOPTED = "frazil.adopted"


MOVED = "frazil.moved"


LETTERS_BEFORE = "frazil.letters-before"


SOURCE_SNAPSHOT_ID = "source-snapshot-id"


STATE_PREFIX = "frazil.state."


HINT_PREFIX = "frazil.hint."


BLOCKED_PREFIX = "frazil.blocked."


SCHEMA_CHANGE_PREFIX = "frazil.schema-change."


BOOTSTRAP = "bootstrap"


INGEST = "ingest"


GAP = "gap"


CARRY = "carry"


REWIND = "rewind"


REPLAY = "replay"


BACKFILL = "backfill"


REDRIVE = "redrive"


ADOPT = "adopt"


MOVE = "move"


ERASE = "erase"


EXPIRE_ROWS = "expire-rows"


ROW_KINDS = frozenset({INGEST, REPLAY, BACKFILL})
"""Kinds of snapshots that publish the records of ranges."""


KAFKA_COLUMN = "_kafka"


EVENT_TIME = f"{KAFKA_COLUMN}.timestamp"


DEAD_LETTERS_SUFFIX = "__dead_letters"


LEDGER_TABLE = "frazil.ledger"


TIMELINE_TABLE = "frazil.timeline"


DEAD_LETTER_REASONS = (
    "null_value",
    "empty_value",
    "invalid_utf8",
    "malformed_json",
    "not_an_object",
    "type_mismatch",
    "required_missing",
    "missing_schema_id",
    "unknown_schema_id",
    "schema_undecided",
    "malformed_avro",
    "malformed_protobuf",
    "other_message",
    "bad_key",
    "unknown_route",
)
"""Every reason that a dead letter may have; a test compares it with the code that writes them."""


def state_key(stream: str) -> str:
    """Name the summary key that holds the stream's full state."""
    return STATE_PREFIX + stream


def hint_key(stream: str) -> str:
    """Name the table property that hints at the stream's newest state."""
    return HINT_PREFIX + stream


def blocked_key(stream: str) -> str:
    """Name the table property that records a blocked batch."""
    return BLOCKED_PREFIX + stream


def columns_key(stream: str) -> str:
    """Name the table property that lists the columns that the stream writes."""
    return f"frazil.columns.{stream}"


def partitions_key(stream: str) -> str:
    """Name the table property that lists the partitions that the stream's file asked for last."""
    return f"frazil.partitions.{stream}"


def route_key(stream: str) -> str:
    """Name the table property that lists the values which a route leaves to other streams."""
    return f"frazil.route.{stream}"


def schema_answer_key(stream: str) -> str:
    """Name the table property that records a person's answer that leaves the schema as it is."""
    return f"frazil.schema-answer.{stream}"


def schema_question_key(stream: str) -> str:
    """Name the table property that lists the registered schemas which ask for a change."""
    return f"frazil.schema-question.{stream}"


PLAIN_LIMIT_BYTES = 4096
"""Above this a text is compressed (C15); below it people can read it in any tool."""


_COMPRESSED = "z:"


def pack(text: str) -> str:
    """Compress a text if it is long."""
    if len(text) <= PLAIN_LIMIT_BYTES:
        return text
    return _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(text: str) -> str:
    """Give the text that was packed.

    Raises:
        ValueError, zlib.error: nothing that `pack` wrote.
    """
    if not text.startswith(_COMPRESSED):
        return text
    return zlib.decompress(base64.b64decode(text.removeprefix(_COMPRESSED))).decode()
