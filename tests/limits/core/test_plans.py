"""Plans from a template equal the plans that are built from the rules."""

import pytest

from tests.limits.builders import CODE_HOST, NOON_MS, a_client, a_user, a_workflow, an_installation, anonymous
from wharf.limits.core import caches as caches_module
from wharf.limits.core import rulebook as rulebook_module
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.plans import ChargePlan
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import PROFILES, read_profile

RULES = read_rules('[[rule]]\nname = "cpu"\nenforce = 50\n[[rule]]\nname = "content"\nshadow = true\n')

PAIRS: list[tuple[Caller, Caller]] = [
    (a_user("ada"), a_user("eve", address="192.0.2.9", token="t2")),
    (a_user("ada"), a_user("bob", app="app:3")),
    (anonymous(), anonymous("198.51.100.9", "198.51.100.0/24")),
    (an_installation(1, repositories=3), an_installation(2, repositories=99, members=50)),
    (a_workflow(), a_workflow()),
    (a_client(), a_client()),
]
REQUESTS = [
    ("GET", "/repos/a/b/issues", None),
    ("POST", "/repos/a/b/issues", None),
    ("POST", "/graphql", QueryFacts(cost=7, points=5, content=2)),
    ("GET", "/rate_limit", None),
    ("GET", "/orgs/a/audit-log", None),
    ("POST", "/a/b.git/info/lfs/objects/batch", None),
]


def fields(plan: ChargePlan) -> dict[str, object]:
    return {name: getattr(plan, name) for name in plan.__struct_fields__}


@pytest.mark.parametrize(("first", "second"), PAIRS)
@pytest.mark.parametrize(("method", "path", "query"), REQUESTS)
def test_a_plan_from_a_template_equals_the_plan_from_the_rules(
    first: Caller, second: Caller, method: str, path: str, query: QueryFacts | None
) -> None:
    rulebook = Rulebook(RULES)
    rulebook.get_plan(RequestFacts("r1", method, path, first, query=query))
    from_template = rulebook.get_plan(RequestFacts("r2", method, path, second, query=query))
    from_rules = Rulebook(RULES).get_plan(RequestFacts("r2", method, path, second, query=query))

    assert fields(from_template) == fields(from_rules)


def test_plans_are_cached_up_to_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulebook_module, "MAX_CACHED_PLANS", 2)
    monkeypatch.setattr(caches_module, "REMOVED_ENTRIES", 1)
    limiter = Limiter(CODE_HOST)

    def get_plan(login: str) -> ChargePlan:
        return limiter.build_call(RequestFacts("r", "GET", "/meta", a_user(login)), NOON_MS).plan

    first, second = get_plan("ada"), get_plan("bob")
    assert (get_plan("ada") is first, get_plan("bob") is second) == (True, True)
    get_plan("eve")  # Evicts the oldest plan.
    assert (get_plan("bob") is second, get_plan("ada") is first) == (True, False)


@pytest.mark.parametrize("profile", PROFILES)
def test_quota_leases_decide_only_large_files_of_code_host_with_a_built_in_profile(profile: str) -> None:
    """docs/limits-counters.md says so."""
    limiter = Limiter(read_profile(profile))
    paths = {
        "/", "/api/v1/user", "/api/v4/user", "/graphql", "/acme/site.git/info/refs", "/assets/x.js", "/api/actions/x", "/v2/x",
        "/api/packages/x", "/acme/site/raw/x", "/rate_limit", "/acme/site.git/info/lfs/objects/batch",
    }  # fmt: skip
    plans = {path: limiter.build_call(RequestFacts("r1", "GET", path, a_user()), NOON_MS).plan for path in paths}

    leased = {path for path, plan in plans.items() if not plan.lease_indexes}

    assert leased == ({"/acme/site.git/info/lfs/objects/batch"} if profile == "code-host" else set())
