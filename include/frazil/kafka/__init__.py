"""Clients of Kafka and of the schema registry: topics, offsets and schemas. No policy.

Face: `KafkaLog`, `TopicFacts`, `OffsetConsumer`, `SchemaRegistry`, `Registered`.
May import: `connections`, `ledger`.
"""
