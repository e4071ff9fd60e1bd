"""Spark side of Frazil: read bounded Kafka ranges, decode once, write to branches.

Of the library it may import: `ingest`, `ledger`, `maintenance`, `migration`, `quality`, `recovery`,
`schemas`, `spark`, `state_tables`, `streams`.
"""
