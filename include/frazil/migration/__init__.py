"""Moving to Frazil from another writer, or to another Kafka cluster.

See `adopt_table`, `compare_tables`, `plan_move`, `move_cluster`.
May import: `ingest`, `spark` and what `ingest` may import.
"""
