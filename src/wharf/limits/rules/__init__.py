"""Rules and directories as operators write them: TOML files, built-in profiles, and lint.

The results are values of `wharf.limits.core`. Nothing here decides about a request.
"""

from wharf.limits.rules.directory_file import read_directory
from wharf.limits.rules.lint import LintFinding, Severity, lint_rules
from wharf.limits.rules.rules_file import read_rules
from wharf.limits.toml.problems import FileProblem, InvalidFile

__all__ = ["FileProblem", "InvalidFile", "LintFinding", "Severity", "lint_rules", "read_directory", "read_rules"]
