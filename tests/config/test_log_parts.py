"""The loggers that the names in `log_levels` select, including names from before version 0.2."""

import importlib
import logging

import pytest

from wharf.config.configuration import CommandFlag, load_configuration
from wharf.config.log_parts import LOGGER_BY_FORMER_PART, get_logger_levels

FORMER_PACKAGES = (
    *(
        "access",
        "agent",
        "agent.roles",
        "api",
        "api.endpoints",
        "cli",
        "client",
        "client.nouns",
        "config",
        "controllers",
    ),
    *("engines", "filters", "hcl", "limits", "limits.client", "limits.configuration", "limits.core", "limits.desk"),
    *("limits.gateway", "limits.operating", "limits.rules", "limits.simulate", "limits.stores", "model"),
    *("model.validation", "node", "node.agent", "node.artifacts", "node.checks", "node.core", "node.devices"),
    *("node.docker", "node.drivers", "node.files", "node.measuring", "node.migrating", "node.networks"),
    *("node.preparing", "node.supervisor", "node.volumes", "node.walls", "operations", "operations.search"),
    *("scheduling", "scheduling.reconcile", "server", "server.answering", "server.leading", "state", "templates"),
    *("templates.functions", "wire", "wire.endpoints", "world"),
)


@pytest.mark.parametrize("part", [*FORMER_PACKAGES, "engines.etcd", "wharf.server.leading", "server.follower"])
def test_the_former_name_of_a_package_is_accepted(part: str) -> None:
    flag = CommandFlag("a flag", ("log_levels", part), "debug")

    configuration = load_configuration(
        environment={}, flags=[flag], presets={("data_dir",): "/d", ("server", "enabled"): True}
    )

    assert configuration.settings.log_levels == {part: "debug"}


@pytest.mark.parametrize("former", LOGGER_BY_FORMER_PART)
def test_a_former_module_or_package_name_sets_the_level_of_the_current_logger(former: str) -> None:
    module = LOGGER_BY_FORMER_PART[former]
    parts = former.split(".")

    logger = next(
        value for value in vars(importlib.import_module(module)).values() if isinstance(value, logging.Logger)
    )
    assert logger.name == module
    for length in range(1, len(parts) + 1):
        part = ".".join(parts[:length])
        assert level_of(module, {part: "debug"}) == level_of(module, {f"wharf.{part}": "debug"}) == "debug", part


@pytest.mark.parametrize(
    ("part", "logger"),
    [
        ("engines", "wharf.cluster.engines"),
        ("engines.etcd", "wharf.cluster.engines.etcd"),
        ("model", "wharf.contract.model"),
        ("api", "wharf.cluster.api"),
        ("server", "wharf.cluster.server"),
        ("scheduling", "wharf.cluster.scheduling"),
        ("hcl", "wharf.languages.hcl"),
        ("limits", "wharf.limits"),
        ("node.drivers", "wharf.node.drivers"),
        ("cluster.server", "wharf.cluster.server"),
    ],
)
def test_a_part_is_a_package_without_the_group_that_holds_it(part: str, logger: str) -> None:
    assert get_logger_levels({part: "debug"})[logger] == "debug"


def test_the_deepest_part_decides_and_a_current_name_beats_an_equally_deep_former_one() -> None:
    moved = "wharf.node.channel.connection"

    assert level_of(moved, {"node": "debug", "node.agent": "error"}) == "error"
    assert level_of(moved, {"node.agent": "error", "node": "debug"}) == "error"
    assert level_of(moved, {"node.agent": "error", "node.channel": "debug"}) == "debug"
    assert level_of(moved, {"node.channel": "debug", "node.agent": "error"}) == "debug"
    assert level_of(moved, {"node.agent.channel_line": "trace", "node.channel": "debug"}) == "trace"
    assert level_of(moved, {"node.tasks": "debug"}) is None


def level_of(logger: str, levels: dict[str, str]) -> str | None:
    """Return the level that `logging` would use: that of the nearest parent with a level."""
    found = get_logger_levels(levels)
    parts = logger.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((found[name] for name in names if name in found), None)
