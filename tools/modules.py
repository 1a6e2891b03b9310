"""Finds class names that occur twice, small modules that only one other module imports, and rings of imports.

A class name should lead a reader to one class. A small module with one importer should be part of that importer, unless
`tools/allowed.toml` gives a reason. In a ring of imports, no module can be read first.
"""

import ast
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

from tools.allowances import print_remaining_findings
from tools.banned import get_module_name
from tools.findings import ROOT, Finding
from tools.imported_names import imported_modules

SOURCE_FOLDER = "src/wharf"
CLASS_RULE = "class-name-twice"
MODULE_RULE = "small-module"
RING_RULE = "import-ring"
SMALL_MODULE_LINES = 50
# Python runs these by their names: nothing imports them, or everything does.
EXCEPTED_FILES = ("__init__.py", "__main__.py")


def find_repeated_classes(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Yield a finding for each class whose name is used in an earlier file, by order of paths."""
    first_file: dict[str, str] = {}
    for path, tree in sorted(trees.items()):
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            earlier = first_file.setdefault(node.name, path)
            if earlier != path:
                message = f"class {node.name} exists in {earlier} too: rename one, or use the other"
                yield Finding(path, node.lineno, CLASS_RULE, message)


def find_small_modules(sources: Mapping[str, str], trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Yield a finding for each module below the limit of lines that exactly one other module imports."""
    importers = _find_importers(trees)
    for path, source in sorted(sources.items()):
        lines = source.count("\n")
        if path.endswith(EXCEPTED_FILES) or lines >= SMALL_MODULE_LINES:
            continue
        module = get_module_name(path)
        names = importers[module]
        # A package that imports one of its own modules offers its names to everybody.
        if len(names) == 1 and not module.startswith(f"{min(names)}."):
            message = f"{lines} lines, and only {min(names)} imports it: move it there"
            yield Finding(path, 1, MODULE_RULE, message)


def _find_importers(trees: Mapping[str, ast.Module]) -> Mapping[str, set[str]]:
    """Return, for each module of the source, the modules that import it."""
    modules = {get_module_name(path) for path in trees}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for path, tree in trees.items():
        importer = get_module_name(path)
        for node in ast.walk(tree):
            for name in imported_modules(node):
                if name in modules and name != importer:
                    importers[name].add(importer)
    return importers


def find_import_ring(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Yield a finding for one ring of modules that import each other, if there is one.

    Imports in functions and under TYPE_CHECKING count too: such a ring cannot be read from the bottom up either.
    """
    paths = {get_module_name(path): path for path in sorted(trees)}
    graph = {module: sorted(_list_imported_modules(trees[path], paths) - {module}) for module, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        ring: list[str] = error.args[1]  # Each module is imported by the next; the last equals the first.
        message = f"these modules import each other: {' <- '.join(ring)}: move what both need into one of them or below"
        yield Finding(paths[ring[0]], 1, RING_RULE, message)


def _list_imported_modules(tree: ast.Module, modules: Container[str]) -> set[str]:
    """Return the modules of the source that a module imports. `from p import m` imports the module `p.m` if it exists, else `p`."""
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found = {name for name in names if name in modules}
            imported |= found if found == names or node.module not in modules else found | {node.module}
    return imported


def check_sources(sources: Mapping[str, str]) -> list[Finding]:
    """Return the findings of all files of the source, given by path."""
    trees = {path: ast.parse(source, filename=path) for path, source in sources.items()}
    return sorted([*find_repeated_classes(trees), *find_small_modules(sources, trees), *find_import_ring(trees)])


def main() -> int:
    """Check all files of the source and print the findings. Return the exit code."""
    files = sorted((ROOT / SOURCE_FOLDER).rglob("*.py"))
    sources = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}
    return print_remaining_findings(check_sources(sources), {CLASS_RULE, MODULE_RULE, RING_RULE})


if __name__ == "__main__":
    raise SystemExit(main())
