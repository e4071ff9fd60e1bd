"""Read-only views for operators: status, freshness, timeline, cost, readiness, audit.

See `read_status`, `list_snapshots`, `locate_offset`, `watch_stream`, `audit_stream`,
`read_timeline`, `record_timeline`, `read_cost`, `check_readiness`, `report_dead_letters`.
May import: `maintenance` and what `maintenance` may import.
"""
