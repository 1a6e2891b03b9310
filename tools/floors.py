"""The floors of the building as a contract for import-linter: each package imports only what its row names.

The table itself is in pyproject.toml. A package that does not exist yet changes nothing; one that exists and has no row
is reported, so that the table stays whole. Imports inside functions and for types count like all others.
"""

import difflib
from collections.abc import Mapping
from typing import cast

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output

ROOT_PACKAGE = "wharf"


class RowsField(fields.Field):  # type: ignore[type-arg] # Its base is generic over a type that import-linter leaves open.
    """Rows of the form "package: other other", or "package: all but other"."""

    def parse(self, raw_data: str | list[str]) -> dict[str, frozenset[str]]:
        rows = [raw_data] if isinstance(raw_data, str) else raw_data
        try:
            return read_rows(rows)
        except ValueError as error:
            raise fields.ValidationError(str(error)) from error


def read_rows(rows: list[str]) -> dict[str, frozenset[str]]:
    """Return for each package what it may import. Raises ValueError where a row names what has no row."""
    texts = {package.strip(): others.strip() for package, _, others in (row.partition(":") for row in rows)}
    known = frozenset(texts)
    table: dict[str, frozenset[str]] = {}
    for package, others in texts.items():
        names = frozenset(others.removeprefix("all but ").split())
        for name in sorted(names - known):
            nearest = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f" Did you mean {nearest[0]}?" if nearest else ""
            raise ValueError(f"The row of {package} names {name}, which has no row of its own.{hint}")
        table[package] = known - names if others.startswith("all but ") else names
    return table


def find_breaches(
    imports: Mapping[tuple[str, str], int | None], table: Mapping[str, frozenset[str]], packages: frozenset[str]
) -> list[str]:
    """Return a sentence for each import that no row allows, and for each package without a row.

    `imports` holds importer and imported module, with the line; `packages` are the packages that exist.
    """
    sentences = [
        f"{ROOT_PACKAGE}.{package} has no row in the table of floors (pyproject.toml): say what it may import."
        for package in sorted(packages - frozenset(table))
    ]
    for (importer, imported), line in sorted(imports.items()):
        upper, lower = _package(importer), _package(imported)
        # The root holds nothing but the version: all may import it, and it imports none.
        if lower in (None, upper) or (upper is not None and upper not in table):
            continue
        if importer == f"{ROOT_PACKAGE}.__main__" and lower == "cli":
            continue
        if upper is None or lower not in table[upper]:
            may = ", ".join(sorted(table[upper])) if upper is not None else ""
            sentences.append(
                f"{importer} imports {imported} (line {line}); {upper or 'the root'} may import only: {may or 'nothing'}."
            )
    return sentences


def _package(module: str) -> str | None:
    parts = module.split(".")
    return None if len(parts) == 1 or parts[1] == "__main__" else parts[1]


class FloorsContract(Contract):
    """Every package imports only what its row names."""

    type_name = "floors"

    rows = RowsField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 # The port names it.
        imports: dict[tuple[str, str], int | None] = {}
        for importer in graph.modules:
            for imported in graph.find_modules_directly_imported_by(importer):
                details = graph.get_import_details(importer=importer, imported=imported)
                imports[importer, imported] = details[0]["line_number"] if details else None
        packages = frozenset(_package(child) for child in graph.find_children(ROOT_PACKAGE)) - {None}
        table = cast("dict[str, frozenset[str]]", self.rows)  # A field is replaced by what it parsed.
        breaches = find_breaches(imports, table, cast("frozenset[str]", packages))
        return ContractCheck(kept=not breaches, metadata={"breaches": breaches})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for breach in check.metadata["breaches"]:
            output.print_error(breach, bold=False)
