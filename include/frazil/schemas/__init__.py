"""Registered schemas (Avro, Protobuf, JSON Schema), and how a table's columns follow them.

See `list_payloads`, `select_schemas`, `with_columns`, `with_newest_columns`, `settle_schema`,
`accept_schema`, `show_schema_review`, `open_with_settled_schema`.
May import: `workspace`, `connections`, `streams`, `ledger`, `kafka`, `iceberg`.
"""
