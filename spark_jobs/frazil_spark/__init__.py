"""Spark side of Frazil: read bounded Kafka ranges, decode once, write to branches."""
