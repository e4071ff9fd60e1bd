"""Rollback, replay, backfill, redrive of dead letters, and decisions about halted streams.

See `plan_recovery`, `recover`, `waive_batch`, `accept_gap`, `plan_replay`, `replay`,
`plan_backfill`, `fill_window`, `redrive_dead_letters`.
May import: `ingest` and what `ingest` may import.
"""
