"""Commands of operators about descriptors: show and reset the counters, and show the rules."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.limits.serving.messages import OK, OVER_LIMIT, Proxy
from wharf.limits.admin.actions import OperatorActions
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.queries import OperatorQueries
from wharf.limits.config.settings import LimiterSettings, StoreSettings
from wharf.limits.rate_limiter import RateLimiter
from wharf.world import SimulatedWorld

RULES = """
[[domain]]
name = "shop"
[[domain.descriptors]]
key = "user"
ceiling = 2
[[domain.descriptors]]
key = "path"
descriptors = [{ key = "user", ceiling = 5 }]
"""


class Operator:
    """A limiter, a proxy that asks it, and the commands of its operator."""

    def __init__(self, folder: Path) -> None:
        (folder / "rules.toml").write_text(RULES)
        world = SimulatedWorld(1)
        settings = LimiterSettings(
            rules_file=folder / "rules.toml", data_folder=folder, store=StoreSettings(is_saved=False)
        )
        limiter = RateLimiter(settings, world)
        self.queries = OperatorQueries(limiter)
        self.actions = OperatorActions(limiter, world)
        self.proxy = Proxy(limiter.decision_service)


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path)


def test_the_counters_of_a_descriptor_are_shown(operator: Operator) -> None:
    async def scenario() -> Any:
        await operator.proxy.ask("path=/x, user=ada")
        return await operator.queries.describe_caller("shop/path:/x,user:ada")

    view = asyncio.run(scenario())
    assert (view["caller"], view["ban_subject"]) == ("shop/path:/x,user:ada", None)
    (limit,) = view["limits"]
    assert (limit["rule"], limit["used"], limit["limit"]) == ("shop_path_user", 1, 5)


def test_the_counters_of_a_descriptor_can_be_reset(operator: Operator) -> None:
    async def scenario() -> tuple[list[int], list[str]]:
        codes = [await operator.proxy.ask_code("user=ada") for _ in range(3)]
        names = await operator.actions.reset_counters("shop/user:ada", rule=None, by="ada", reason="test")
        return [*codes, await operator.proxy.ask_code("user=ada")], names

    assert asyncio.run(scenario()) == ([OK, OK, OVER_LIMIT, OK], ["shop_user"])


def test_a_descriptor_is_not_taken_for_the_user_of_this_name(operator: Operator) -> None:
    """A user without requests and without an account is unknown, also if a proxy sends descriptors with the name."""

    async def scenario() -> None:
        await operator.proxy.ask("user=ada")
        await operator.queries.describe_caller("user:ada")

    with pytest.raises(ActionError, match="caller 'user:ada' not found"):
        asyncio.run(scenario())


def test_top_shows_descriptors_with_their_domain(operator: Operator) -> None:
    async def scenario() -> Any:
        await operator.proxy.ask("user=ada")
        return await operator.queries.list_top_callers()

    (rows,) = asyncio.run(scenario())["seen"].values()
    assert [(row["caller"], row["requests"], row["busiest"]) for row in rows] == [("shop/user:ada", 1, "shop user")]


def test_limits_of_domains_are_among_the_rules(operator: Operator) -> None:
    rules = {rule["name"]: rule for rule in operator.queries.describe_rules()["rules"]}
    assert rules["shop_path_user"]["match"] == ["shop: path=*, user=*"]
