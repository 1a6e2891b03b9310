"""Resolve the library name that an expression refers to, through the imports of its module.

`dt.datetime.now` after `import datetime as dt` is `datetime.datetime.now`; `now` after `from time import time as now` is
`time.time`. All scopes count as one, so a module should not use one name for two imports.
"""

import ast
from collections.abc import Iterator


class ImportedNames:
    """The full names that the imports of one module bind."""

    def __init__(self, tree: ast.Module) -> None:
        self._meaning: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname:
                        self._meaning[alias.asname] = alias.name
                    else:
                        top = alias.name.partition(".")[0]
                        self._meaning[top] = top
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def resolve(self, node: ast.expr) -> str | None:
        """Return the full name that a name or a chain of attributes stands for, if it begins at an import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._meaning:
            return None
        return ".".join([self._meaning[node.id], *reversed(parts)])


def imported_modules(node: ast.AST) -> Iterator[str]:
    """Yield the modules that an import statement names, and for `from m import n` also `m.n`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
