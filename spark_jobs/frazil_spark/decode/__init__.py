"""Bytes of records to columns in Spark SQL: which rows are good, which are not, and why.

Of the library it may import: `streams`, `ledger`, `quality`, `schemas`, `ingest`, `recovery`.
"""
