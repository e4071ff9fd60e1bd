"""The command line: parses options, calls the library, prints what it returns.

May import: `frazil`, `frazil_stack`.
"""
