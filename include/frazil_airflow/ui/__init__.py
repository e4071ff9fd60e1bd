"""The plugin's web pages: one for all streams, one for each stream; HTML is in `templates/`.

Of the library it may import: `observability`, `ingest`, `streams`, `ledger`, `workspace`.
"""
