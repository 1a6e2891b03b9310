"""Finds class names that occur twice in the source, and small modules that only one other module imports.

A class name should lead a reader to one class. A small module with one importer should be part of that importer, unless
`tools/allowed.toml` gives a reason.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from tools.allowances import print_remaining_findings
from tools.banned import get_module_name
from tools.findings import ROOT, Finding
from tools.imported_names import imported_modules

SOURCE_FOLDER = "src/wharf"
CLASS_RULE = "class-name-twice"
MODULE_RULE = "small-module"
SMALL_MODULE_LINES = 50
# Python runs these by their names: nothing imports them, or everything does.
EXCEPTED_FILES = ("__init__.py", "__main__.py")


def find_repeated_classes(trees: Mapping[str, ast.Module]) -> Iterator[Finding]:
    """Yield a finding for each public class whose name is used in an earlier file, by order of paths."""
    first_file: dict[str, str] = {}
    for path, tree in sorted(trees.items()):
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
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


def check_sources(sources: Mapping[str, str]) -> list[Finding]:
    """Return the findings of all files of the source, given by path."""
    trees = {path: ast.parse(source, filename=path) for path, source in sources.items()}
    return sorted([*find_repeated_classes(trees), *find_small_modules(sources, trees)])


def main() -> int:
    """Check all files of the source and print the findings. Return the exit code."""
    files = sorted((ROOT / SOURCE_FOLDER).rglob("*.py"))
    sources = {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}
    return print_remaining_findings(check_sources(sources), {CLASS_RULE, MODULE_RULE})


if __name__ == "__main__":
    raise SystemExit(main())
