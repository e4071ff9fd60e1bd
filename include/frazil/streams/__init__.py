"""Stream files as typed values, with line numbers in their errors.

Face: `Stream`, `load_stream`, `load_readable_streams`, `Column`, `parse_column`, `compare_columns`.
May import: `ledger` (keys), `errors`.
"""
