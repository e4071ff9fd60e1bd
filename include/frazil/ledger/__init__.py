"""What snapshots say about offsets: pure values and functions, no input or output.

Face: `OffsetRange`, `Ranges`, `StreamState`, `History`, `RecoveryPoint`, `find_recovery_point`,
`walk_ancestors`, `trace_steps`, `Spans`.
May import: `errors`.
"""
