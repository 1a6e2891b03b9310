"""The command `wharf`. Commands load what they need when they run, so that help is there at once.

A command reads what it was given, asks the package that does the work, and shows the outcome. It decides nothing else.
"""

from wharf.cli.root import main

__all__ = ["main"]
