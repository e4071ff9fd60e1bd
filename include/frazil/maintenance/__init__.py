"""Compaction, snapshot expiry, orphan removal, row expiry and erasure.

See `compact_table`, `expire_snapshots`, `remove_orphans`, `expire_rows`, `plan_erasure`, `erase`,
`summarize_table`.
May import: `state_tables`, `events` and what `state_tables` may import.
"""
