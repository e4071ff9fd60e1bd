"""Compaction, snapshot expiry, orphan removal, and rows that must leave a table.

Face: `compact_table`, `expire_snapshots`, `remove_orphans`, `expire_rows`, `plan_erasure`, `erase`,
`summarize_table`.
May import: `ingest`, `events` and what `ingest` may.
"""
