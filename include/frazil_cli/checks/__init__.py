"""The checks of `frazil doctor`: this machine and its stack, and the connections of streams."""
