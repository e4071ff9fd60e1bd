"""Stream files: models, validation with line numbers in errors, and the reference.

See `Stream`, `load_stream`, `load_readable_streams`, `Column`, `parse_column`, `compare_columns`.
May import: `connections`, `ledger`.
"""
