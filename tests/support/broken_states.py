"""Stream files of state tables, and mistakes in them with line, field and reason."""

STATE = """\
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value:
  columns:
    id: long!
    at: long!
    op: string
    name: string
table:
  name: demo.orders
  mode: upsert
  id_columns: [id]
  cdc_field: op
  deletes: mark
  partition_by: ["bucket(id, 16)"]
order:
  sequence_by: [at]
merge:
  schedule: each_batch
"""
"""A state table."""

TOMBSTONES = """ {columns: {COLUMNS}}
key: {convert: json, columns: {id: long!}}
table: {name: a.b, mode: upsert, id_columns: [id], tombstones: delete}
"""
UPSERTS = """\
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value:
  rest: others
  columns:
    id: long!
    name: string
table:
  name: demo.orders
  mode: upsert
  id_columns: [id]
  sort_by: [name]
key: {convert: json, columns: {code: string}}
"""
"""A state table without an operation."""
BROKEN_UPSERTS = [
    *(
        ("    name: string", f"    {name}: string", 8, f"value.columns.{name}", "`table.cdc_field`")
        for name in ("_op", "_OP")
    ),
    ("rest: others", "rest: _Op", 5, "value.rest", "`table.cdc_field`"),
    ("sort_by: [name]", "cdc_field: others", 13, "table.cdc_field", "holds the rest of the fields"),
    ("code: string", "_op: string", 14, "key.columns._op", "`table.cdc_field`"),
    (
        UPSERTS.partition("rest: ")[2],
        f"_OP\n  columns: {{name: string}}\n{TOMBSTONES.partition(chr(10))[2]}",
        5,
        "value.rest",
        "this column is added",
    ),
]
BROKEN_STATE = [
    ("id_columns: [id]", "id_columns: []", 13, "table.id_columns", "name the key's columns"),
    ("id_columns: [id]", "id_columns: [name]", 13, "table.id_columns.0", "must be required"),
    ("id_columns: [id]", "id_columns: [key]", 13, "table.id_columns.0", "is not among at, id"),
    ("    id: long!", "    id: double!", 13, "table.id_columns.0", "id is double; these types"),
    (
        "    id: long!",
        "    id: fixed(8)!",
        13,
        "table.id_columns.0",
        "`string`, which has the Base64",
    ),
    ("    id: long!", "    id: list<int>!", 13, "table.id_columns.0", "id is list<int>; these"),
    ("cdc_field: op", "cdc_field: at", 14, "table.cdc_field", "'at' is not a string column"),
    ("deletes: mark", "deletes: keep", 15, "table.deletes", "'remove' or 'mark'"),
    ("mode: upsert", "mode: append", 13, "table.id_columns", "only with `mode: upsert`"),
    ("name: demo.orders", "name: demo.o__changes", 11, "table.name", "belong to state tables"),
    ('"bucket(id, 16)"', '"bucket(id)"', 16, "table.partition_by.0", "have a width"),
    ("sequence_by: [at]", "sequence_by: [op]", 18, "order.sequence_by.0", "op is string; these"),
    ("\n  sequence_by: [at]", " offsets", 17, "order", "'kafka' or a mapping (found 'offsets')"),
    ("sequence_by: [at]", "sequence: [at]", 17, "order.sequence_by", "required, but not set"),
    ("sequence_by: [at]", "sequence_by: []", 18, "order.sequence_by", "at least 1 item"),
    ("schedule: each_batch", "schedule: hourly", 20, "merge.schedule", "'each_batch' or 'manual'"),
    ("schedule: each_batch", "max_changes: 0", 20, "merge.max_changes", "(found 0)"),
    ("    name: string", "    name: string!", 9, "value.columns.name", "may carry only its key"),
    (
        "    op: string",
        "    _deleted_at: string",
        8,
        "value.columns._deleted_at",
        "reserved for state tables",
    ),
    ("  mode: upsert", "  mode: upsert\n  state: {name: a.b}", 13, "table.state", "unknown key"),
    ("merge:", "errors: {tolerance: all}\nmerge:", 19, "errors.tolerance", "keep an older row"),
    ("merge:", "changes:\n  keep_days: 0\nmerge:", 20, "changes.keep_days", "(found 0)"),
    (
        "merge:",
        "maintenance:\n  expire_rows: {column: _kafka.timestamp, keep_days: 9}\nmerge:",
        20,
        "maintenance.expire_rows.column",
        "must be the first column of `sequence_by`, at",
    ),
    ("deletes: mark", "tombstones: delete", 15, "table.tombstones", "needs id in the Kafka key"),
    ("sequence_by: [at]", "sequence_by: _source.lsn", 18, "order.sequence_by.0", "among at, id"),
    (
        STATE.partition("value:")[2],
        TOMBSTONES.replace("COLUMNS", "at: long!") + "order: {sequence_by: [at]}\n",
        7,
        "order.sequence_by.0",
        "at is not in the Kafka key",
    ),
    (
        STATE.partition("value:")[2],
        TOMBSTONES.replace("COLUMNS", "_op: string"),
        4,
        "value.columns._op",
        "this column is added",
    ),
    (
        "value:",
        "key: {convert: string, columns: {id: long!}}\nvalue:",
        4,
        "key.columns",
        "only with `json` or a registry",
    ),
]
REST = STATE.partition("value:")[2]
Mistake = tuple[str, str, int, str, str]


def mistake(value: str, table: str, field: str, reason: str, order: str = "kafka") -> Mistake:
    """Write a mistake in a state table; its sections are in the lines 4 to 6."""
    lines = f" {{{value}}}\ntable: {{name: a.b, mode: upsert, {table}}}\norder: {order}\n"
    line = 4 + ("value", "table", "order").index(field.partition(".")[0])
    return REST, lines, line, field, reason


_ID, _OP = "columns: {id: long!}", "columns: {id: long!, op: string}"
_BY_ID, _BY_OP = "id_columns: [id]", "id_columns: [id], cdc_field: op"
_MARK = "id_columns: [id], deletes: mark"
_NOT_THERE = "is not a column of the state table"
_RESERVED = "reserved for state tables"
BROKEN_NAMES = [
    *(
        mistake(
            f"columns: {{{key}: long!, at: long!}}",
            f"id_columns: [{key}]",
            "table.id_columns.0",
            "is a column of the delete memory",
            "{sequence_by: at}",
        )
        for key in ("memory", "Memory", "_Sequence")
    ),
    mistake(_ID, "id_columns: [id, id]", "table.id_columns.1", "named twice"),
    mistake(
        "columns: {id: long!, _DELETED_AT: int}", _MARK, "value.columns._DELETED_AT", _RESERVED
    ),
    mistake(f"rest: _Deleted_At, {_ID}", _MARK, "value.rest", _RESERVED),
    mistake(f"rest: _deleted_at, {_ID}", _BY_ID, "value.rest", _RESERVED),
]
BROKEN_LAYOUTS = [
    *(
        mistake(_OP, f"{_BY_OP}, partition_by: [id, {entry}]", "table.partition_by.1", _NOT_THERE)
        for entry in ("op", "'bucket(op, 4)'")
    ),
    mistake(_OP, f"{_BY_OP}, partition_by: [id], sort_by: [op]", "table.sort_by.0", _NOT_THERE),
    *(
        mistake(
            f"transform: flatten_debezium, {_ID}",
            f"{_BY_ID}, {option}: [_op]",
            f"table.{option}.0",
            _NOT_THERE,
        )
        for option in ("partition_by", "sort_by")
    ),
    (
        REST,
        TOMBSTONES.replace("COLUMNS", "v: long").replace(" delete}", " delete, sort_by: [_op]}"),
        6,
        "table.sort_by.0",
        _NOT_THERE,
    ),
]
BROKEN_SOURCES = [
    mistake(
        f"columns: {{id: long!, _source: {kind}}}",
        _BY_ID,
        "order.sequence_by.0",
        "is not among _source, ",
        "{sequence_by: _source.lsn}",
    )
    for kind in ("'struct<lsn: string>'", "'struct<ts_ms: long>'", "string")
]
BROKEN_SOURCES += [
    mistake(
        f"transform: flatten_debezium, columns: {{id: long!, updated_at: {kind}}}",
        f"id_columns: {ids}",
        "order.sequence_by.0",
        f"a delete has only the columns of the key, so it lacks updated_at; use one of {fitting}",
        "{sequence_by: [updated_at]}",
    )
    for kind in ("timestamptz!", "timestamptz", "long!")
    for ids, fitting in (
        ("[id]", "_source.lsn, _source.ts_ms, _kafka.timestamp, id"),
        ("_from_debezium_key_", "_source.lsn, _source.ts_ms, _kafka.timestamp"),
    )
]
BROKEN_STATES = [
    *((STATE, row) for row in (*BROKEN_STATE, *BROKEN_NAMES, *BROKEN_LAYOUTS, *BROKEN_SOURCES)),
    *((UPSERTS, row) for row in BROKEN_UPSERTS),
]
