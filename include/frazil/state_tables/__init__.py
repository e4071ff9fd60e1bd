"""State tables: one row per key, folded from the changes that a stream publishes.

See `merge_changes`, `audit_state`, `verify_source`, `read_state_status`, and the messages.
May import: `ingest` and what `ingest` may import.
"""
