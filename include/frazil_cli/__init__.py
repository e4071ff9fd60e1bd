"""The command line: parse options, call the library, print the result; `main` has the commands.

May import: `frazil`, `frazil_stack`.
"""
