"""Local values: evaluated in the order of their references, so that each may use the others."""

from collections.abc import Sequence

from wharf.languages.hcl.bodies import SyntaxArgument, SyntaxBody
from wharf.languages.hcl.budget import locate_excess
from wharf.languages.hcl.diagnostics import DiagnosticList, ExpressionError, SourceFile, SourceRange
from wharf.languages.hcl.nodes import Scope
from wharf.languages.hcl.reader import NAME
from wharf.languages.hcl.values import Value, list_sensitive_parts


def collect_local_values(
    body: SyntaxBody, source: SourceFile, diagnostics: DiagnosticList
) -> dict[str, SyntaxArgument]:
    """Return the arguments of all blocks `locals`. A name that occurs twice is an error."""
    arguments: dict[str, SyntaxArgument] = {}
    for block in body.list_blocks("locals"):
        if block.labels:
            diagnostics.add(source, block.start, block.header_end, "locals has no label", "write locals {")
        for inner in block.body.blocks:
            diagnostics.add(
                source, inner.start, inner.header_end, f'locals has no block "{inner.type[:80]}"',
                f"write {inner.type[:80]} = {{ ... }} for an object",
            )  # fmt: skip
        for argument in block.body.arguments.values():
            if NAME.fullmatch(argument.name) is None:
                diagnostics.add(
                    source, argument.name_start, argument.name_end,
                    f'"{argument.name[:80]}" is not a name for a local value',
                    "a name has letters, digits, _ and -, and does not start with a digit",
                )  # fmt: skip
                continue
            first = arguments.get(argument.name)
            if first is None:
                arguments[argument.name] = argument
                continue
            place = SourceRange(source, first.name_start, first.name_end)
            diagnostics.add(
                source, argument.name_start, argument.name_end, f'the local value "{argument.name[:80]}" occurs twice',
                "rename one of them", related=(place, "the first is at"),
            )  # fmt: skip
    return arguments


def evaluate_local_values(
    arguments: dict[str, SyntaxArgument], source: SourceFile, scope: Scope, diagnostics: DiagnosticList
) -> None:
    """Set the values of all local values in the scope. Names with errors are added to those that failed."""
    values: dict[str, Value] = {}
    failed = set(scope.failed)
    scope.locals = values
    scope.failed = failed
    dependencies = {name: _list_dependencies(argument, arguments) for name, argument in arguments.items()}
    order, ring = _sort_by_dependency(dependencies)
    if ring:
        argument = arguments[ring[0]]
        path = " -> ".join(f"local.{name}" for name in [*ring, ring[0]])
        diagnostics.add(
            source, argument.name_start, argument.name_end, f"local values need each other in a ring: {path[:400]}",
            "remove one of the references",
        )  # fmt: skip
    failed.update(f"local.{name}" for name in arguments.keys() - set(order))
    sensitive = scope.sensitive
    for name in order:
        argument = arguments[name]
        scope.budget.use_steps(2)
        sensitive.has_read = False
        try:
            with locate_excess(SourceRange(source, argument.value.start, argument.value.end)):
                values[name] = argument.value.evaluate_parts(scope)
        except ExpressionError as error:
            failed.add(f"local.{name}")
            # The values that are not evaluated yet are known too.
            diagnostics.add_evaluation_error(source, error, is_sensitive=sensitive.has_read)
        if sensitive.has_read:
            sensitive.locals.add(name)
        for value in list_sensitive_parts(values.get(name), is_sensitive=sensitive.has_read):
            diagnostics.hidden.add_computed(value)


def _list_dependencies(argument: SyntaxArgument, arguments: dict[str, SyntaxArgument]) -> Sequence[str]:
    """Return the local values to which an argument refers. `local` alone refers to all of them."""
    names: list[str] = []
    for reference in argument.references:
        if reference.root != "local":
            continue
        if reference.name is None:
            return list(arguments)
        if reference.name in arguments:
            names.append(reference.name)
    return names


def _sort_by_dependency(dependencies: dict[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the names in an order in which each follows those it needs, and the names of one ring.

    Names in a ring, and names that need one of them, are not in the order.
    """
    waiting = {name: len(set(needed)) for name, needed in dependencies.items()}
    users: dict[str, list[str]] = {name: [] for name in dependencies}
    for name, needed in dependencies.items():
        for other in set(needed):
            users[other].append(name)
    order = [name for name, count in waiting.items() if count == 0]
    for name in order:  # The list grows while it is read.
        for user in users[name]:
            waiting[user] -= 1
            if waiting[user] == 0:
                order.append(user)
    remaining = dependencies.keys() - set(order)
    if not remaining:
        return order, []
    # Each remaining name needs another remaining name, so following them leads into a ring.
    name = next(name for name in dependencies if name in remaining)
    positions: dict[str, int] = {}
    path: list[str] = []
    while name not in positions:
        positions[name] = len(path)
        path.append(name)
        name = next(other for other in dependencies[name] if other in remaining)
    return order, path[positions[name] :]
