"""The four steps of a batch: plan, stage, check, publish.

See `plan_next_batch`, `preview_next_batch`, `stage_batch`, `check_batch`, `publish_staged`,
`publish_marker`, `record_decision`, and the messages that the steps pass to each other.
May import: `schemas`, `quality` and what `schemas` may import.
"""
