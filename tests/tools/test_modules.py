"""The check of class names that occur twice, and of small modules with one importer."""

from tools.modules import check_sources


def findings(sources: dict[str, str]) -> list[tuple[str, str]]:
    return [(finding.path, finding.rule) for finding in check_sources(sources)]


def test_a_class_name_that_occurs_in_two_files_is_found_in_the_second() -> None:
    sources = {
        "src/wharf/a.py": "class Job: ...",
        "src/wharf/b.py": "class Job: ...\n",
        "src/wharf/c.py": "class Node: ...",
    }

    assert findings(sources) == [("src/wharf/b.py", "class-name-twice")]


def test_private_classes_may_share_a_name() -> None:
    assert findings({"src/wharf/a.py": "class _Row: ...", "src/wharf/b.py": "class _Row: ..."}) == []


def test_a_small_module_with_one_importer_is_found() -> None:
    sources = {"src/wharf/a.py": "X = 1", "src/wharf/b.py": "from wharf.a import X"}

    assert findings(sources) == [("src/wharf/a.py", "small-module")]


def test_a_small_module_with_two_importers_passes() -> None:
    importer = "from wharf import a"

    assert findings({"src/wharf/a.py": "X = 1", "src/wharf/b.py": importer, "src/wharf/c.py": importer}) == []


def test_a_module_of_fifty_lines_with_one_importer_passes() -> None:
    assert findings({"src/wharf/a.py": "X = 1\n" * 50, "src/wharf/b.py": "import wharf.a"}) == []


def test_packages_and_programs_are_not_small_modules() -> None:
    sources = {
        "src/wharf/p/__init__.py": "X = 1",
        "src/wharf/p/__main__.py": "Y = 1",
        "src/wharf/b.py": "import wharf.p",
    }

    assert findings(sources) == []


def test_a_small_module_that_its_own_package_imports_passes() -> None:
    assert findings({"src/wharf/p/a.py": "X = 1", "src/wharf/p/__init__.py": "from wharf.p.a import X"}) == []
