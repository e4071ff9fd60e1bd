"""The command line: parse options, call the library, print the result.

May import: `frazil`, `frazil_stack`.
"""
