"""The plugin's web pages: one for all streams, one for each stream; HTML is in `templates/`.

May import: `frazil_airflow`, and of the library `observability`, `ingest`, `streams`, `ledger`,
`workspace`.
"""
