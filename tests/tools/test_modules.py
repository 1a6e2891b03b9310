"""The check of class names that occur twice, of small modules with one importer, and of rings of imports."""

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


def test_private_classes_do_not_share_a_name_either() -> None:
    sources = {"src/wharf/a.py": "class _Row: ...", "src/wharf/b.py": "class _Row: ..."}

    assert findings(sources) == [("src/wharf/b.py", "class-name-twice")]


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


def test_modules_that_import_each_other_are_a_ring() -> None:
    filler = "\n" * 50
    sources = {
        "src/wharf/a.py": f"from wharf.b import X{filler}",
        "src/wharf/b.py": f"from wharf import c{filler}",
        "src/wharf/c.py": f"if TYPE_CHECKING:\n    import wharf.a{filler}",
        "src/wharf/d.py": f"import wharf.a{filler}",
    }

    (ring,) = [finding for finding in check_sources(sources) if finding.rule == "import-ring"]

    assert all(f"wharf.{name}" in ring.message for name in "abc")


def test_a_package_that_offers_names_of_its_modules_is_no_ring() -> None:
    sources = {
        "src/wharf/p/__init__.py": "from wharf.p.a import X",
        "src/wharf/p/a.py": "from wharf.p import b\n" + "\n" * 50,
        "src/wharf/p/b.py": "Y = 1" + "\n" * 50,
    }

    assert [finding for finding in check_sources(sources) if finding.rule == "import-ring"] == []
