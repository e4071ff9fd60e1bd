"""The checks of `frazil doctor`: this machine and its stack, and the connections of streams.

`doctor` runs them all. May import what `frazil_cli` may.
"""
