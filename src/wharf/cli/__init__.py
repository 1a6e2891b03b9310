"""The command line interface `wharf`: one module for each command or group of commands.

A command reads its arguments, calls the package that does the work, and prints the result. Modules are loaded when
their command runs, so that `--help` is fast. No domain logic belongs here.
"""

from wharf.cli.root import main

__all__ = ["main"]
