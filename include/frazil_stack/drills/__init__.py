"""Drills: inject a failure into a scratch stream and check its recovery.

Of the library it may import: `kafka`, `iceberg`, `ledger`, `workspace`, `events`, `connections`.
"""
