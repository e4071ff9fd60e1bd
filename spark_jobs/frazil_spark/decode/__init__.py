"""Bytes of records to columns in Spark SQL: which rows are good, which are not, and why.

`frame` decodes a batch that `sources` has read; the others know one part of a record.

Of the library it may import: `streams`, `ledger`, `quality`, `schemas`, `ingest`, `recovery`.
"""
