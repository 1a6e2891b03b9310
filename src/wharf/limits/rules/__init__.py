"""Rules and directories as people write them: reading TOML with errors at line and column, profiles, lint.

What is read here is handed to `wharf.limits.core` as values. Nothing here decides about a request.
"""

from wharf.limits.rules.directory_file import read_directory
from wharf.limits.rules.lint import LintFinding, Severity, lint_rules
from wharf.limits.rules.rules_file import read_rules
from wharf.limits.toml.problems import FileProblem, InvalidFile

__all__ = ["FileProblem", "InvalidFile", "LintFinding", "Severity", "lint_rules", "read_directory", "read_rules"]
