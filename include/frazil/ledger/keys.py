"""Names of the summary keys, table properties, columns and tables that Frazil writes.

docs/formats.md describes them. Long values are compressed by `pack`.
"""

import base64
import zlib

KIND = "frazil.kind"
BATCH_ID = "frazil.batch-id"
RANGES = "frazil.ranges"
ROWS_READ = "frazil.rows-read"
ROWS_WRITTEN = "frazil.rows-written"
ROWS_QUARANTINED = "frazil.rows-quarantined"
ROWS_SKIPPED = "frazil.rows-skipped"
SKIPPED = "frazil.skipped"
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
APPROVED_BY = "frazil.approved-by"
TARGET = "frazil.target"
LOST_RANGES = "frazil.lost-ranges"
RESUMED = "frazil.resumed-from"
LOST_WINDOWS = "frazil.lost-windows"
ABANDONED_HEAD = "frazil.abandoned-head"
ADOPTED = "frazil.adopted"
MOVED = "frazil.moved"
TRIMMED = "frazil.trimmed"
FOLDED = "frazil.folded"
CHANGE_SNAPSHOT = "frazil.change-snapshot"
LETTERS_BEFORE = "frazil.letters-before"
SOURCE_SNAPSHOT_ID = "source-snapshot-id"
STATE_PREFIX = "frazil.state."
HINT_PREFIX = "frazil.hint."
BLOCKED_PREFIX = "frazil.blocked."
WAIVER_PREFIX = "frazil.waiver."
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
MERGE = "merge"
TRIM = "trim"
ROW_KINDS = frozenset({INGEST, REPLAY, BACKFILL})
"""Kinds of snapshots that publish the records of offset ranges."""
CHANGE_KINDS = frozenset({REPLAY, BACKFILL, REDRIVE, ERASE, EXPIRE_ROWS, TRIM})
"""Kinds of snapshots that change rows and hold no state."""
KAFKA_COLUMN = "_kafka"
EVENT_TIME = f"{KAFKA_COLUMN}.timestamp"
DEAD_LETTERS_SUFFIX = "__dead_letters"
CHANGES_SUFFIX = "__changes"
DELETES_SUFFIX = "__deletes"
LAST_ERASURE = "frazil.last-erasure"
"""The table property of a dead-letter table: the newest snapshot that erased dead letters."""
STATE_OF = "frazil.state-of"
"""The table property of a state table: the stream whose changes it folds."""
STATE_FIELDS = "frazil.state-fields"
"""The table property with field id of the change table=field id of the state table."""
LEDGER_TABLE = "frazil.ledger"
TIMELINE_TABLE = "frazil.timeline"
DECODER_FAILED = "decoder_failed"
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
    "unreadable_schema",
    "schema_undecided",
    "malformed_avro",
    "malformed_protobuf",
    "other_message",
    "bad_key",
    "not_an_envelope",
    "key_missing",
    "other_key",
    "unknown_encoding",
    "truncate",
    "unknown_route",
    DECODER_FAILED,
)
"""All reasons of dead letters; a test compares them with the code that writes them."""
PLAIN_LIMIT_BYTES = 4096
"""Longer values are compressed; shorter ones stay readable in any tool."""
_COMPRESSED = "z:"


def state_key(stream: str) -> str:
    """Return the summary key that holds the stream's state."""
    return STATE_PREFIX + stream


def hint_key(stream: str) -> str:
    """Return the table property that holds the stream's hint."""
    return HINT_PREFIX + stream


def blocked_key(stream: str) -> str:
    """Return the table property that records a blocked batch."""
    return BLOCKED_PREFIX + stream


def waiver_key(stream: str) -> str:
    """Return the table property of a person's permission to publish a blocked batch."""
    return WAIVER_PREFIX + stream


def merge_key(stream: str) -> str:
    """Return the summary key of a state table that holds the stream's merge position."""
    return f"frazil.merge.{stream}"


def columns_key(stream: str) -> str:
    """Return the table property that lists the columns that the stream writes."""
    return f"frazil.columns.{stream}"


def partitions_key(stream: str) -> str:
    """Return the table property that holds `partition_by` of the stream file as last applied."""
    return f"frazil.partitions.{stream}"


def route_key(stream: str) -> str:
    """Return the table property that lists the values that are routed to other streams."""
    return f"frazil.route.{stream}"


def schema_answer_key(stream: str) -> str:
    """Return the table property that records an answer to a schema review (stop, quarantine)."""
    return f"frazil.schema-answer.{stream}"


def schema_question_key(stream: str) -> str:
    """Return the table property that lists the registered schemas that wait for a review."""
    return f"frazil.schema-question.{stream}"


def pack(text: str) -> str:
    """Compress a text that is longer than `PLAIN_LIMIT_BYTES`."""
    if len(text) <= PLAIN_LIMIT_BYTES:
        return text
    return _COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def unpack(text: str) -> str:
    """Return the text that was passed to `pack`.

    Raises:
        ValueError, zlib.error: `pack` did not write this text.
    """
    if not text.startswith(_COMPRESSED):
        return text
    return zlib.decompress(base64.b64decode(text.removeprefix(_COMPRESSED))).decode()
