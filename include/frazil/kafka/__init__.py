"""Clients of Kafka and of the schema registry: topics, offsets and schemas. No policy.

See `KafkaLog`, `TopicFacts`, `OffsetConsumer`, `SchemaRegistry`, `Registered`.
May import: `connections`, `ledger`.
"""
