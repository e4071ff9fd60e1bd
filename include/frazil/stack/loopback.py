"""Talking to this machine only."""

import urllib.request

LOOPBACK = "127.0.0.1"

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs without a proxy: one that is set for the internet cannot reach 127.0.0.1."""
