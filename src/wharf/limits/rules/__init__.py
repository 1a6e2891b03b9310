"""Rules and directories as people write them: reading TOML with errors at line and column, profiles, lint.

What is read here is handed to `wharf.limits.core` as values. Nothing here decides about a request.
"""

from wharf.limits.rules.directory_file import read_directory
from wharf.limits.rules.lint import Finding, Severity, lint
from wharf.limits.rules.problems import FileRefused, Problem
from wharf.limits.rules.reader import read_rules

__all__ = ["FileRefused", "Finding", "Problem", "Severity", "lint", "read_directory", "read_rules"]
