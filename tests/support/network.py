"""Addresses that no packet reaches."""

NO_ROUTE = "255.255.255.255:9"
"""The broadcast address: Linux refuses connections to it with "Network is unreachable"."""
