"""The contract that keeps imports pointing down."""

import tomllib

import pytest

from tools.findings import ROOT
from tools.floors import find_breaches, read_rows

TABLE = read_rows(["model:", "state: model", "config: all but config cli", "cli: model"])
ALL = frozenset(TABLE)


def test_an_import_that_the_row_names_passes() -> None:
    assert find_breaches({("wharf.state.table", "wharf.model.job"): 3}, TABLE, ALL) == []


def test_an_import_inside_one_package_passes() -> None:
    assert find_breaches({("wharf.model.job", "wharf.model.group"): 3}, TABLE, ALL) == []


def test_an_import_that_points_up_is_a_breach() -> None:
    assert find_breaches({("wharf.model.job", "wharf.state"): 3}, TABLE, ALL) == [
        "wharf.model.job imports wharf.state (line 3); model may import only: nothing."
    ]


def test_all_but_stands_for_every_other_row() -> None:
    imports = {("wharf.config", "wharf.state"): 1, ("wharf.config", "wharf.cli"): 2}

    assert find_breaches(imports, TABLE, ALL) == [
        "wharf.config imports wharf.cli (line 2); config may import only: model, state."
    ]


def test_a_package_without_a_row_is_a_breach() -> None:
    (breach,) = find_breaches({}, TABLE, ALL | {"helpers"})

    assert breach.startswith("wharf.helpers has no row in the table of floors")


def test_a_package_that_does_not_exist_yet_breaks_nothing() -> None:
    assert find_breaches({}, TABLE, frozenset({"model"})) == []


def test_the_root_imports_nothing_and_all_may_import_it() -> None:
    imports = {("wharf", "wharf.model"): 1, ("wharf.state", "wharf"): 2, ("wharf.__main__", "wharf.cli"): 3}

    assert find_breaches(imports, TABLE, ALL) == [
        "wharf imports wharf.model (line 1); the root may import only: nothing."
    ]


def test_a_row_that_names_an_unknown_package_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"names modle, which has no row of its own\. Did you mean model\?"):
        read_rows(["model:", "state: modle"])


def test_the_project_s_own_table_has_no_ring() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    table = read_rows(settings["tool"]["importlinter"]["contracts"][0]["rows"])
    standing: set[str] = set()
    while laid := {package for package, below in table.items() if package not in standing and below <= standing}:
        standing |= laid

    assert standing == set(table)
