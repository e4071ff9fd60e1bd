"""Drills: a failure is injected into a scratch stream, and its recovery is checked.

May import: `frazil_stack`, and of the library `kafka`, `iceberg`, `ledger`, `workspace`, `events`,
`messages`.
"""
