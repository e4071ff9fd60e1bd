"""Stream files with every option, and mistakes in them with line, field and reason."""

from support.broken_states import BROKEN_STATES

from frazil.streams.column_types import METADATA_COLUMNS

FILE_SIZE = '{write.target-file-size-bytes: "1"}'
GOOD = """\
stream: orders
owner: data-platform@example.org
source:
  topic: orders
  start: earliest
  isolation: read_committed
value:
  convert: json
  columns:
    id: long!
    at: timestamp
    price: decimal(9,2)
table:
  name: demo.orders
  mode: append
  partition_by: ["day(at)"]
  sort_by: [id]
  properties: {write.target-file-size-bytes: "1"}
batch:
  schedule: "* * * * *"
  max_records: 1000
  engine: connect
errors:
  tolerance: quarantine
  max_bad_ratio: 0.05
  max_bad_records: 7
schema:
  add_column: auto
quality:
  suite: orders
  on_failure: block
freshness:
  warn_seconds: 180
  fail_seconds: 600
maintenance:
  schedule: "17 * * * *"
  compact_target_mb: 128
  expire_hours: 72
  rollback_hours: 24
  orphan_days: 3
"""

CHANGES = """\
stream: orders
owner: data-platform@example.org
source: {topic: orders}
value:
  transform: flatten_debezium
  truncate: refuse
  decimals: string
  rest: others
  columns: {id: long!, kind: string}
table: {name: demo.orders}
"""

REST = """\
stream: orders
owner: data-platform@example.org
source:
  connection: kafka_default
  topics: [orders, returns]
value:
  convert: by_schema_id
  transform: flatten
  registry: schema_registry_default
  subject: orders
  message: Order
  unknown_id: wait
  columns: {kind: string, at: timestamptz}
key:
  convert: by_latest_schema
  column: order_key
  type: string
  registry: schema_registry_default
  subject: keys
  message: Key
  unknown_id: quarantine
table:
  connection: iceberg_default
  name: demo.orders
route:
  field: kind
  tables: {web: demo.web}
batch: {catch_up_records: 2000000}
schema:
  widen: auto
  relax: review
  other: fail
maintenance:
  expire_rows:
    column: at
    keep_days: 90
"""
"""What GOOD leaves out."""


BROKEN = [
    ("stream: orders", "stream: Orders", 1, "stream", "should match pattern"),
    ("owner: data-platform@example.org", "owner: ''", 2, "owner", "at least 1 character"),
    ("owner: data-platform@example.org", "", 1, "owner", "required, but not set"),
    ("  topic: orders", "  topic: ''", 4, "source.topic", "at least 1 character"),
    *(
        ("  topic: orders", f"  topic: {name}", 4, "source.topic", "no topic has this name")
        for name in ("a b", "é", "../x", ".", "..", r'"\0"', "a/b", r'"a\n"')
    ),
    ("  topic: orders", "  tpoic: orders", 4, "source.tpoic", "unknown key (found 'orders')"),
    ("  topic: orders", "  topic_pattern: '('", 4, "source.topic_pattern", "not a regular express"),
    ("  start: earliest", "  exclude_topics: [a]", 5, "source.exclude_topics", "only with `topic"),
    ("  start: earliest", "  start: soon", 5, "source.start", "'latest' or a mapping (found"),
    ("  start: earliest", "  start: {offsets: {0: -1}}", 5, "source.start.offsets.0", "greater"),
    ("  start: earliest", "  start: {offsets: {-1: 5}}", 5, "source.start.offsets.-1", "to 0"),
    (
        "start: earliest",
        "start: {timestamp: yesterday}",
        5,
        "source.start.timestamp",
        "not an ISO 8601",
    ),
    (
        "start: earliest",
        "start: {timestamp: 2026-01-31}",
        5,
        "source.start.timestamp",
        "no time zone",
    ),
    (
        "start: earliest",
        "start: {timestamp: 1969-12-31T23:59:59Z}",
        5,
        "source.start.timestamp",
        "1970",
    ),
    ("  start: earliest", "  monitoring_group: ''", 5, "source.monitoring_group", "1 character"),
    ("read_committed", "dirty", 6, "source.isolation", "'read_committed' or 'read_unc"),
    (
        "convert: json",
        "convert: xml",
        8,
        "value.convert",
        "'json', 'string', 'raw', 'by_schema_id'",
    ),
    ("id: long!", "id: bigint", 10, "value.columns.id", "unknown type 'bigint'; known: boolean"),
    ("id: long!", "id: 5", 10, "value.columns.id", "valid string (found 5)"),
    ("decimal(9,2)", "decimal(40,2)", 12, "value.columns.price", "precision 1 to 38"),
    ("decimal(9,2)", "decimal(x,2)", 12, "value.columns.price", "a number expected, 'x' found"),
    ("decimal(9,2)", "fixed(0)", 12, "value.columns.price", "must be 1 to"),
    ("decimal(9,2)", "'struct<a: int, A: int>'", 12, "value.columns.price", "only in case"),
    ("    at: timestamp", "    _kafka: string", 11, "value.columns._kafka", "added to every"),
    ("    at: timestamp", "    ID: timestamp", 11, "value.columns.ID", "differ only in case"),
    ("    at: timestamp", "    a-t: timestamp", 11, "value.columns.a-t", "letters, digits and _"),
    ("    at: timestamp", "    id: timestamp", 11, "value.columns.id", "first in line 10"),
    ("    at: timestamp", "    on: timestamp", 11, "value.columns.on", "put it in quotes"),
    ("owner: data-platform@example.org", "stream: sales", 2, "stream", "first in line 1"),
    ("[id]", "[{a: 1, a: 2}]", 17, "table.sort_by.0.a", "duplicate key, first in line 17"),
    ("convert: json", "convert: raw", 7, "value", "has one column: `columns: {value: binary}`"),
    ("name: demo.orders", "name: Orders", 14, "table.name", "not `namespace.table`"),
    ("name: demo.orders", "name: a.b__dead_letters", 14, "table.name", "belong to dead letters"),
    ("name: demo.orders", f"name: a.{'b' * 242}", 14, "table.name", "a name of 242 letters"),
    ("name: demo.orders", f"name: {'b.' * 129}a", 14, "table.name", "a namespace of 257"),
    ("name: demo.orders", "name: frazil.ledger", 14, "table.name", "a table of Frazil itself"),
    ("name: demo.orders", "name: frazil.timeline", 14, "table.name", "a table of Frazil itself"),
    ("mode: append", "mode: merge", 15, "table.mode", "'append' or 'upsert'"),
    ("mode: append", "other_writers: deny", 15, "table.other_writers", "'allow' or 'refuse'"),
    *(
        (FILE_SIZE, f'{{{key}: "{value}"}}', 18, f"table.properties.{key}", reason)
        for key, value, reason in (
            ("frazil.hint", "x", "frazil.* are reserved"),
            ("format-version", "1", "must be 2"),
            ("format-version", "3", "must be 2"),
            ("history.expire.max-ref-age-ms", "1", "expire staging branches"),
            ("write.format.default", "orc", "must be parquet: the fast path"),
            ("write.format.default", "AVRO", "must be parquet: the fast path"),
            ("gc.enabled", "false", "maintenance could expire no snapshot"),
            ("write.distribution-mode", "hashed", "must be none, hash or range"),
            ("write.parquet.compression-codec", "zip", "must be zstd, gzip"),
            ("write.target-file-size-bytes", "128 MB", "must be a whole number"),
            ("write.parquet.row-group-size-bytes", "", "must be a whole number"),
            ("commit.retry.num-retries", "-1", "must be a whole number"),
        )
    ),
    *(
        ("    at: timestamp", f"    {name}: timestamp", 11, f"value.columns.{name}", reason)
        for name, reason in (
            *((name, "belongs to Iceberg, which adds ") for name in sorted(METADATA_COLUMNS)),
            ("_FILE", "which adds _file to every table"),
            ("_Kafka", "_kafka is added to every table"),
            ("_frazil_good", "are for staging"),
            ("order-id", 'write `order_id: {type: …, from: "order-id"}`'),
            ("größe", 'write `gr_e: {type: …, from: "größe"}`'),
            ("a.b", "for field b inside a write `a: struct<b: …>`"),
            (
                "9th",
                'start with no digit; to read such a field, write `_9th: {type: …, from: "9th"}`',
            ),
        )
    ),
    ("    at: timestamp", '    "": timestamp', 11, "value.columns.", "a field without a name cann"),
    (
        "    at: timestamp",
        '    "@timestamp": timestamp',
        11,
        "value.columns.@timestamp",
        'write `timestamp: {type: …, from: "@timestamp"}`',
    ),
    (
        "decimal(9,2)",
        "'struct<a-b: int>'",
        12,
        "value.columns.price",
        '`struct<order_id: long from "order-id">`',
    ),
    *(
        (
            "decimal(9,2)",
            f"'struct<{name}: int>'",
            12,
            "value.columns.price",
            '`struct<order_id: long from "order-id">`',
        )
        for name in ("9th", '"a-b"', "a.b", "é")
    ),
    ("decimal(9,2)", "'struct<!: int>'", 12, "value.columns.price", "a field name expected"),
    (
        'schedule: "* * * * *"',
        "schedule: often",
        20,
        "batch.schedule",
        "1 of 5 fields; ex",
    ),
    ("max_records: 1000", "max_records: 0", 21, "batch.max_records", "greater than or equal to 1"),
    ("engine: connect", "tasks: two", 22, "batch.tasks", "should be 'each_step' or 'one'"),
    ("engine: connect", "engine: local", 22, "batch.engine", "should be 'connect' or 'submit'"),
    ("tolerance: quarantine", "tolerance: some", 24, "errors.tolerance", "'none', 'invalid"),
    ("max_bad_ratio: 0.05", "max_bad_ratio: 5", 25, "errors.max_bad_ratio", "(found 5)"),
    ("max_bad_records: 7", "max_bad_records: -7", 26, "errors.max_bad_records", "(found -7)"),
    ("add_column: auto", "add_column: ask", 28, "schema.add_column", "'auto', 'review'"),
    ("suite: orders", "suite: ../orders", 30, "quality.suite", "should match pattern"),
    ("on_failure: block", "on_failure: stop", 31, "quality.on_failure", "'block' or 'warn'"),
    ("warn_seconds: 180", "warn_seconds: 601", 32, "freshness", "must not exceed fail_seconds"),
    ("fail_seconds: 600", "fail_seconds: 0", 34, "freshness.fail_seconds", "greater than or equal"),
    ('"* * * * *"', '"61 * * * *"', 20, "batch.schedule", "out of range; example: `*/5 * * * *`"),
    ('"* * * * *"', '"a b c d e"', 20, "batch.schedule", "not acceptable; example"),
    ('"* * * * *"', '"0 0 31 2 *"', 20, "batch.schedule", "failed to find next date; example"),
    ('"* * * * *"', '"* * * * * *"', 20, "batch.schedule", "6 of 5 fields"),
    ('"* * * * *"', '"@sometimes"', 20, "batch.schedule", "(found '@sometimes')"),
    (
        '"17 * * * *"',
        '"17 * *"',
        36,
        "maintenance.schedule",
        "not a cron expression: 3 of 5 fields",
    ),
    ("compact_target_mb: 128", "compact_target_mb: no", 37, "maintenance.compact_target_mb", ""),
    ("expire_hours: 72", "expire_hours: 0", 38, "maintenance.expire_hours", "(found 0)"),
    ("rollback_hours: 24", "rollback_hours: -1", 39, "maintenance.rollback_hours", "(found -1)"),
    ("orphan_days: 3", "orphan_days: 0", 40, "maintenance.orphan_days", "(found 0)"),
    ("orphan_days: 3", "orphan_day: 3", 40, "maintenance.orphan_day", "unknown key"),
    ("quality:", "qualtiy:", 29, "qualtiy", "unknown key"),
    ("    price: decimal(9,2)", "  transform: dig", 12, "value.transform", "'flatten_debezium'"),
    ('["day(at)"]', "day(at)", 16, "table.partition_by", "Input should be a list"),
    (
        '["day(at)"]',
        '["day(id)"]',
        16,
        "table.partition_by.0",
        "id is long; day supports date, times",
    ),
    ('["day(at)"]', '["day(at)", "day( at )"]', 16, "table.partition_by.1", "both be named at_day"),
    ('["day(at)"]', '["dya(at)"]', 16, "table.partition_by.0", "'dya'; known: identity"),
    ("sort_by: [id]", "sort_by: [nme]", 17, "table.sort_by.0", "column 'nme' is not among"),
    ("sort_by: [id]", "sort_by: [day(at)]", 17, "table.sort_by.0", "without a transform"),
    *(
        (
            "id: long!",
            f"id: {text}",
            17,
            "table.sort_by.0",
            "which has no order; remove it, or sort",
        )
        for text in ("list<int>", "'map<string, int>'", "'struct<a: int>'")
    ),
    ('["day(at)"]', '["void(at)"]', 16, "table.partition_by.0", "unknown transform 'void'"),
    ('["day(at)"]', '["bucket(id, 0)"]', 16, "table.partition_by.0", "above 0 and at most"),
    ("warn_seconds: 180", "warn_seconds: 0", 33, "freshness.warn_seconds", "(found 0)"),
]
BROKEN_REST = [
    ("connection: kafka_default", "connection: 9092", 4, "source.connection", "(found 9092)"),
    ("topics: [orders, returns]", "topics: orders", 5, "source.topics", "Input should be a list"),
    ("topics: [orders, returns]", "topics: [orders, '']", 5, "source.topics.1", "1 character"),
    ("topics: [orders, returns]", "topics: [orders, orders]", 5, "source.topics", "listed twice"),
    ("topics: [orders, returns]", "isolation: read_committed", 3, "source.topic", "name one `top"),
    (
        "registry: schema_registry_default\n  subject: orders",
        "registry: 1",
        9,
        "value.registry",
        "",
    ),
    ("  subject: orders\n", "", 6, "value.subject", "required because the stream has several"),
    ("subject: orders", "subject: ''", 10, "value.subject", "at least 1 character"),
    ("message: Order\n", "message: ''\n", 11, "value.message", "at least 1 character"),
    ("unknown_id: wait", "unknown_id: skip", 12, "value.unknown_id", "'wait' or 'quarantine'"),
    ("convert: by_latest_schema", "convert: avro", 15, "key.convert", "'json', 'string', 'raw'"),
    ("convert: by_latest_schema", "convert: raw", 17, "key.type", "requires `type: binary`"),
    ("column: order_key", "column: KIND", 16, "key.column", "differ only in case"),
    ("column: order_key", "column: _kafka", 16, "key.column", "added to every table"),
    ("column: order_key", "column: _POS", 16, "key.column", "belongs to Iceberg"),
    ("column: order_key", "column: order-key", 16, "key.column", "letters, digits and _"),
    ("type: string\n", "type: text\n", 17, "key.type", "unknown type 'text'"),
    ("registry: schema_registry_default\n  subject: keys", "registry: []", 18, "key.registry", ""),
    ("subject: keys", "subject: 7", 19, "key.subject", "(found 7)"),
    ("message: Key", "message: [Key]", 20, "key.message", "valid string"),
    ("unknown_id: quarantine", "unknown_id: fail", 21, "key.unknown_id", "'wait' or 'quarantine'"),
    ("connection: iceberg_default", "connection: {}", 23, "table.connection", "valid string"),
    ("field: kind", "field: at", 26, "route.field", "'at' is not a string column of"),
    ("field: kind", "field: ''", 26, "route.field", "at least 1 character"),
    ("{web: demo.web}", "{}", 27, "route.tables", "at least 1 item"),
    ("{web: demo.web}", "{web: web}", 27, "route.tables.web", "not `namespace.table`"),
    ("{web: demo.web}", "{web: a.b, Web: a.c}", 27, "route.tables.web", "same stream name, …__web"),
    ("{web: demo.web}", "{web: a.b, shop: a.b}", 27, "route.tables.web", "a.b is listed twice"),
    ("{web: demo.web}", "{web: demo.orders}", 27, "route.tables.web", "table of the file itself"),
    ("  field: kind", "  takes: web\n  field: kind", 26, "route.takes", "unknown key"),
    ("_records: 2000000", "_records: 2", 28, "batch.catch_up_records", "not be below max_records"),
    (
        "{catch_up_records: 2000000}",
        "{max_bytes_per_second: 1}",
        28,
        "batch.max_bytes_per_second",
        "greater than or equal to 10000",
    ),
    ("_records: 2000000", "_records: 0", 28, "batch.catch_up_records", "(found 0)"),
    ("widen: auto", "widen: ask", 30, "schema.widen", "'auto', 'review', 'quarantine'"),
    ("relax: review", "relax: true", 31, "schema.relax", "'auto', 'review', 'quarantine'"),
    ("other: fail", "other: drop", 32, "schema.other", "'auto', 'review', 'quarantine'"),
    (
        "    column: at",
        "    column: kind",
        35,
        "maintenance.expire_rows.column",
        "not a time column",
    ),
    ("    column: at\n", "", 34, "maintenance.expire_rows.column", "required, but not set"),
    ("keep_days: 90", "keep_days: 0", 36, "maintenance.expire_rows.keep_days", "(found 0)"),
    ("keep_days: 90", "keep_days: 800000", 36, "maintenance.expire_rows.keep_days", "to 36500"),
]
BROKEN_CHANGES = [
    ("truncate: refuse", "truncate: drop", 6, "value.truncate", "'refuse' or 'apply'"),
    ("truncate: refuse", "truncate: apply", 6, "value.truncate", "no key: remove `!` from id"),
    ("decimals: string", "decimals: double", 7, "value.decimals", "'precise' or 'string'"),
    ("flatten_debezium", "flatten", 7, "value.decimals", "only with `transform: flatten_debez"),
    ("rest: others", "rest: kind", 8, "value.rest", "kind is a column of its own"),
    ("rest: others", "rest: _op", 8, "value.rest", "_op is a column of its own"),
    ("rest: others", "rest: a-b", 8, "value.rest", "letters, digits and _"),
    ("  trunc", "  convert: by_latest_schema\n  trunc", 5, "value.transform", "or by_schema_id"),
    (
        "{name: demo.orders}",
        "{name: demo.orders, mode: upsert, id_columns: [id], cdc_field: kind}",
        10,
        "table.cdc_field",
        "the event says what happened",
    ),
    (
        CHANGES.partition("truncate: ")[2],
        "apply\n  columns: {id: long}\ntable: {name: a.b, mode: upsert, id_columns: [id]}\n",
        6,
        "value.truncate",
        "delete every key",
    ),
    (
        "{name: demo.orders}",
        "{name: demo.orders, mode: upsert, id_columns: [id], tombstones: delete}",
        10,
        "table.tombstones",
        "the event says what happened",
    ),
    (
        "{name: demo.orders}",
        "{name: demo.orders, mode: upsert, id_columns: [id]}\norder: {sequence_by: [_source.pos]}",
        11,
        "order.sequence_by.0",
        "_source.lsn, _source.ts_ms",
    ),
    (
        "  trunc",
        "  convert: by_schema_id\n  trunc",
        8,
        "value.decimals",
        "only with `convert: json`",
    ),
    ("kind: string", "_OP: string", 9, "value.columns._OP", "added by flatten_debezium"),
    (
        "table:",
        "route: {field: kind, tables: {a: demo.a}}\ntable:",
        10,
        "route",
        "a delete has only",
    ),
]
MISTAKES = [
    *((GOOD, row) for row in BROKEN),
    *((REST, row) for row in BROKEN_REST),
    *((CHANGES, row) for row in BROKEN_CHANGES),
    *BROKEN_STATES,
]
