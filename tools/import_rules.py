"""The import rules as a contract for import-linter: each package imports only what its row names.

The table is in pyproject.toml. A row names a package of `wharf`, with dots for packages inside it. A module belongs to the
longest row that matches. A name on the right side of a row includes all rows below it. A package without a row is reported.
Imports inside functions and for types count like all others.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT_PACKAGE = "wharf"
ALL_BUT = "all but "


class RowsField(fields.Field):  # type: ignore[type-arg] # Its base is generic over a type that import-linter leaves open.
    """A field of the contract whose rows have the form "package: other other" or "package: all but other"."""

    def parse(self, raw_data: str | list[str]) -> dict[str, frozenset[str]]:
        """Return, for each row, the rows that it may import. Raises `ValidationError` if a row is invalid."""
        rows = [raw_data] if isinstance(raw_data, str) else raw_data
        try:
            return read_rows(rows)
        except ValueError as error:
            raise fields.ValidationError(str(error)) from error


def read_rows(rows: list[str]) -> dict[str, frozenset[str]]:
    """Return, for each row of the table, the rows that it may import.

    Raises `ValueError` if a row names a package without a row.
    """
    texts = {package.strip(): others.strip() for package, _, others in (row.partition(":") for row in rows)}
    table: dict[str, frozenset[str]] = {}
    for package, others in texts.items():
        names: set[str] = set()
        for name in others.removeprefix(ALL_BUT).split():
            included = [row for row in texts if is_inside(row, name)]
            if not included:
                nearest = difflib.get_close_matches(name, sorted(texts), n=1)
                hint = f" Did you mean {nearest[0]}?" if nearest else ""
                raise ValueError(f"The row of {package} names {name}, which has no row of its own.{hint}")
            names.update(included)
        table[package] = frozenset(texts) - names if others.startswith(ALL_BUT) else frozenset(names)
    return table


def is_inside(package: str, outer: str) -> bool:
    return package == outer or package.startswith(f"{outer}.")


def find_violations(
    imports: Mapping[tuple[str, str], int | None], rules: Mapping[str, frozenset[str]], modules: Iterable[str]
) -> list[str]:
    """Return a sentence for each import that no row allows, and for each module that no row covers.

    `imports` holds importer and imported module, with the line.
    """
    sentences = [
        f"{module} has no row in the table of imports (pyproject.toml): write what it may import."
        for module in sorted(modules)
        if not is_exempt(module, rules) and find_row(module, rules) is None
    ]
    for (importer, imported), line in sorted(imports.items()):
        upper, lower = find_row(importer, rules), find_row(imported, rules)
        # The root holds nothing but the version: every package may import it, and it imports none.
        if lower in (None, upper) or importer == f"{ROOT_PACKAGE}.__main__":
            continue
        allowed = rules[upper] if upper is not None else frozenset()
        if lower not in allowed:
            may = ", ".join(sorted(allowed)) or "nothing"
            sentences.append(
                f"{importer} imports {imported} (line {line}); {upper or 'the root'} may import only: {may}."
            )
    return sentences


def find_row(module: str, rules: Mapping[str, frozenset[str]]) -> str | None:
    """Return the longest row that covers the module, or `None`."""
    name = module.removeprefix(ROOT_PACKAGE).removeprefix(".")
    while name:
        if name in rules:
            return name
        name = name.rpartition(".")[0]
    return None


def is_exempt(module: str, rules: Mapping[str, frozenset[str]]) -> bool:
    """Return whether the module needs no row: the root, its `__main__`, and packages that only hold other rows."""
    if module in (ROOT_PACKAGE, f"{ROOT_PACKAGE}.__main__"):
        return True
    name = module.removeprefix(f"{ROOT_PACKAGE}.")
    return any(row.startswith(f"{name}.") for row in rules)


class ImportRulesContract(Contract):
    """A contract of import-linter: every package imports only what its row of the table names."""

    type_name = "import-rules"

    rows = RowsField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 # import-linter passes it.
        """Compare all imports with the table. Return the violations."""
        imports: dict[tuple[str, str], int | None] = {}
        for importer in graph.modules:
            for imported in graph.find_modules_directly_imported_by(importer):
                details = graph.get_import_details(importer=importer, imported=imported)
                imports[importer, imported] = details[0]["line_number"] if details else None
        rules = cast("dict[str, frozenset[str]]", self.rows)  # import-linter replaces the field by what it parsed.
        violations = find_violations(imports, rules, graph.modules)
        return ContractCheck(kept=not violations, metadata={"violations": violations})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for violation in check.metadata["violations"]:
            output.print_error(violation, bold=False)
