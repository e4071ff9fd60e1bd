"""Iceberg tables, branches and commits through PyIceberg. No policy.

Only `commits` uses PyIceberg's private parts. See `TableStore`, `TableView`,
`build_append`, `build_overwrite`, `create_branch`, `archive_new_entries`, `fast_forward_main`.
May import: `connections`, `ledger`, `streams`.
"""
