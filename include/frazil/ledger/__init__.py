"""The ledger: offsets and state in snapshot summaries, as pure values and functions without I/O.

See `OffsetRange`, `Ranges`, `StreamState`, `History`, `RecoveryPoint`, `find_recovery_point`,
`walk_ancestors`, `trace_steps`, `Spans`.
May import: nothing else of the library.
"""
