"""Drills: inject a failure into a scratch stream and check its recovery.

May import: `frazil_stack`, and of the library `kafka`, `iceberg`, `ledger`, `workspace`, `events`,
`messages`.
"""
