"""The plugin's pages: one for all streams, one per stream.

May import: `frazil_airflow`, and of the library `observability`, `ingest`, `streams`, `ledger`,
`workspace`.
"""
