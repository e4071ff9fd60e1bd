"""The command `frazil`: one module per group of commands."""
