"""The check of import rules: a module may import only the layers below its own."""

import tomllib

import pytest

from tools.findings import ROOT
from tools.import_rules import find_violations, read_rows

RULES = read_rows(
    ["model:", "cluster.state: model", "cluster.api: cluster.state model", "config: all but config cli", "cli: model"]
)


def test_an_import_in_the_row_of_its_module_passes() -> None:
    assert find_violations({("wharf.cluster.state.table", "wharf.model.job"): 3}, RULES, ()) == []


def test_an_import_inside_one_package_passes() -> None:
    assert find_violations({("wharf.model.job", "wharf.model.group"): 3}, RULES, ()) == []


def test_an_import_that_points_up_is_a_violation() -> None:
    assert find_violations({("wharf.model.job", "wharf.cluster.state"): 3}, RULES, ()) == [
        "wharf.model.job imports wharf.cluster.state (line 3); model may import only: nothing."
    ]


def test_an_import_that_points_up_inside_a_package_of_packages_is_a_violation() -> None:
    assert find_violations({("wharf.cluster.state.table", "wharf.cluster.api.app"): 3}, RULES, ()) == [
        "wharf.cluster.state.table imports wharf.cluster.api.app (line 3); cluster.state may import only: model."
    ]


def test_all_but_expands_to_every_other_row() -> None:
    imports = {("wharf.config", "wharf.cluster.state"): 1, ("wharf.config", "wharf.cli"): 2}

    assert find_violations(imports, RULES, ()) == [
        "wharf.config imports wharf.cli (line 2); config may import only: cluster.api, cluster.state, model."
    ]


def test_a_name_includes_the_rows_below_it() -> None:
    assert read_rows(["cluster.state:", "cluster.api:", "agent: cluster"])["agent"] == {"cluster.state", "cluster.api"}


def test_a_module_without_a_row_is_a_violation() -> None:
    (violation,) = find_violations({}, RULES, ["wharf.model.job", "wharf.cluster", "wharf.cluster.helpers"])

    assert violation.startswith("wharf.cluster.helpers has no row in the table of imports")


def test_a_package_that_does_not_exist_yet_breaks_nothing() -> None:
    assert find_violations({}, RULES, ["wharf", "wharf.__main__", "wharf.model"]) == []


def test_the_root_imports_nothing_and_every_package_may_import_it() -> None:
    imports = {("wharf", "wharf.model"): 1, ("wharf.cluster.state", "wharf"): 2, ("wharf.__main__", "wharf.cli"): 3}

    assert find_violations(imports, RULES, ()) == [
        "wharf imports wharf.model (line 1); the root may import only: nothing."
    ]


def test_a_row_that_names_an_unknown_package_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match=r"names modle, which has no row of its own\. Did you mean model\?"):
        read_rows(["model:", "state: modle"])


def test_the_project_s_own_table_has_no_cycle() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    rules = read_rows(settings["tool"]["importlinter"]["contracts"][0]["rows"])
    placed: set[str] = set()
    while layer := {package for package, lower in rules.items() if package not in placed and lower <= placed}:
        placed |= layer

    assert placed == set(rules)
