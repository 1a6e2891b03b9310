"""Prefix and fuzzy search: limits and order of results (conventions 3.2)."""

from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, admitted
from tests.kit.settings import USUAL_SEARCH_LIMITS
from tests.kit.state import AState, an_allocation
from wharf.cluster.access import ALL_RIGHTS, get_rights
from wharf.cluster.operations.search import (
    FuzzySearchResult,
    PrefixSearchResult,
    SearchContext,
    search_by_prefix,
    search_fuzzy,
)
from wharf.cluster.operations.search.table_scan import (
    RECORDS_PER_STEP,
    UNORDERED_RECORDS_PER_STEP,
    iterate_by_creation,
    iterate_by_key,
)
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, SCALING_POLICIES, VARIABLES
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.variables import Variable

T = TypeVar("T")


def run_search(steps: Generator[None, None, T]) -> tuple[T, int]:
    """Run a search to its end; return its result and the number of batches."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found, count
        count += 1


def store_job(state: AState, id: str, *groups: Any, **fields: Any) -> Job:
    job = replace(admitted(a_job(id, *groups, **fields)), create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)
    state.put(JOBS.build_put(job))
    return job


def make_state(count: int) -> AState:
    state = AState()
    for number in range(count):
        store_job(state, f"web-{number:04}")
    return state


def run_fuzzy_search(
    state: AState, text: str, context: SearchContext = SearchContext.JOBS, **limits: Any
) -> tuple[FuzzySearchResult, int]:
    found = search_fuzzy(
        state.replica, [context], text, ALL_RIGHTS, namespace="default", limits=replace(USUAL_SEARCH_LIMITS, **limits)
    )
    return run_search(found)


def run_prefix_search(
    state: AState, prefix: str, context: SearchContext = SearchContext.JOBS, **limits: Any
) -> tuple[PrefixSearchResult, int]:
    found = search_by_prefix(
        state.replica, [context], prefix, ALL_RIGHTS, namespace="default", limits=replace(USUAL_SEARCH_LIMITS, **limits)
    )
    return run_search(found)


def list_names(found: FuzzySearchResult, context: str = "jobs") -> list[str]:
    return [each.id for each in found.matches.get(context, ())]


def test_names_with_an_earlier_match_come_first_then_by_name() -> None:
    state = AState()
    for id in ("b-web", "web-b", "a-web", "web-a", "none"):
        store_job(state, id)

    assert list_names(run_fuzzy_search(state, "web")[0]) == ["web-a", "web-b", "a-web", "b-web"]


def test_the_best_matches_are_returned_wherever_they_are_stored() -> None:
    state = AState()
    for number in range(30):
        store_job(state, f"a-web-{number:02}")
    store_job(state, "web")

    found, _ = run_fuzzy_search(state, "web", max_results=3)

    assert list_names(found) == ["web", "a-web-00", "a-web-01"]
    assert found.truncations["jobs"]


def test_a_result_at_the_limit_is_not_truncated() -> None:
    state = make_state(3)

    assert not run_fuzzy_search(state, "web", max_results=3)[0].truncations["jobs"]
    assert run_fuzzy_search(state, "web", max_results=2)[0].truncations["jobs"]


def test_a_truncated_search_marks_every_context_in_jobs_as_truncated() -> None:
    state = make_state(10)

    found, _ = run_fuzzy_search(state, "web", max_examined_records=9)

    assert len(list_names(found)) == 9
    assert found.truncations == dict.fromkeys(
        ["jobs", "groups", "services", "tasks", "images", "commands", "classes"], True
    )


def test_a_prefix_search_stops_at_the_limit() -> None:
    state = make_state(10)

    assert run_prefix_search(state, "web", max_examined_records=9)[0].truncations == {"jobs": True}
    assert run_prefix_search(state, "web", max_examined_records=10)[0].truncations == {"jobs": False}


def test_a_search_yields_after_each_batch_of_records() -> None:
    state = make_state(3 * RECORDS_PER_STEP)

    assert run_fuzzy_search(state, "nothing")[1] == 3


def test_other_namespaces_are_not_searched() -> None:
    state = make_state(3 * RECORDS_PER_STEP)

    found, steps = run_search(
        search_fuzzy(
            state.replica, [SearchContext.JOBS], "web", ALL_RIGHTS, namespace="other", limits=USUAL_SEARCH_LIMITS
        )
    )

    assert (list_names(found), steps) == ([], 1)


def test_writes_between_two_batches_neither_hide_nor_repeat_records() -> None:
    state = make_state(2 * RECORDS_PER_STEP)
    steps = iterate_by_key(state.replica, JOBS, "default\0")
    first = next(steps)
    state.put(JOBS.build_delete("default", first[0].id), JOBS.build_delete("default", f"web-{RECORDS_PER_STEP:04}"))
    store_job(state, "web-0000a")

    remaining_ids = [job.id for some in steps for job in some]

    assert remaining_ids == [f"web-{number:04}" for number in range(RECORDS_PER_STEP + 1, 2 * RECORDS_PER_STEP)]


def test_each_allocation_is_searched_once_in_order_of_creation() -> None:
    state = AState()
    job = store_job(state, "shop")
    ids = [f"a{number:04}" for number in range(UNORDERED_RECORDS_PER_STEP + 10)]
    for start in range(0, len(ids), 100):
        state.put(*(ALLOCATIONS.build_put(an_allocation(job, id)) for id in reversed(ids[start : start + 100])))

    assert [each.id for some in iterate_by_creation(state.replica, ALLOCATIONS) for each in some] == ids


def test_images_and_classes_are_found_in_the_driver_configuration() -> None:
    state = AState()
    group = a_group(
        "g",
        a_task("a", driver="docker", config={"image": "redis:7"}),
        a_task("b", driver="java", config={"class": "redis.Main"}),
        a_task("c", driver="exec", config={"command": "redis-server"}),
        a_task("d", driver="mock", config={"image": "redis-not"}),
        a_task("e", driver="docker", config={"image": 7}),
    )
    store_job(state, "shop", group)

    found, _ = run_fuzzy_search(state, "redis")

    assert {context: list_names(found, context) for context in found.matches} == {
        "images": ["redis:7"],
        "classes": ["redis.Main"],
        "commands": ["redis-server"],
    }


def test_variables_are_found_by_part_of_their_path() -> None:
    state = AState()
    state.put(VARIABLES.build_put(make_variable("jobs/shop/db")))

    assert [
        (each.id, each.scope) for each in run_fuzzy_search(state, "DB", SearchContext.VARIABLES)[0].matches["vars"]
    ] == [("jobs/shop/db", ("default", "jobs/shop/db"))]
    assert run_prefix_search(state, "jobs/", SearchContext.VARIABLES)[0].matches == {"vars": ("jobs/shop/db",)}


def make_variable(path: str) -> Variable:
    return Variable(namespace="default", path=path, data=b"", key_id="k1", create_index=WRITE_INDEX)


def test_a_search_in_all_namespaces_finds_names_of_each_of_them() -> None:
    state = AState()
    store_job(state, "web-1")
    store_job(state, "web-2", namespace="other")

    found = search_fuzzy(
        state.replica, [SearchContext.JOBS], "web", ALL_RIGHTS, namespace="*", limits=USUAL_SEARCH_LIMITS
    )

    assert sorted(list_names(run_search(found)[0])) == ["web-1", "web-2"]


def test_groups_without_tasks_or_services_have_only_their_own_name() -> None:
    state = AState()
    job = store_job(state, "web")
    group = replace(job.groups[0], name="empty", tasks=None, services=None)
    state.put(JOBS.build_put(replace(job, task_groups=(group,))))

    assert list_names(run_fuzzy_search(state, "empty")[0], "groups") == ["empty"]


@pytest.mark.parametrize(
    ("context", "is_listed"),
    [(SearchContext.NODES, False), (SearchContext.EVALUATIONS, True), (SearchContext.QUOTAS, False)],
)
def test_kinds_of_records_with_uuids_are_listed_although_nothing_matches(
    context: SearchContext, is_listed: bool
) -> None:
    found, _ = run_fuzzy_search(AState(), "ab", context)

    assert (context in found.matches, found.matches.get(context, ())) == (is_listed, ())


@pytest.mark.parametrize("target", [None, {"Namespace": "other"}, {"Namespace": "default"}])
def test_scaling_policies_are_found_in_the_namespace_of_their_job(target: dict[str, str] | None) -> None:
    state = AState()
    policy_id = "abcdabcd-0000-0000-0000-000000000000"
    state.put(SCALING_POLICIES.build_put(ScalingPolicy(id=policy_id, target=target, create_index=WRITE_INDEX)))

    found, _ = run_prefix_search(state, "abcd", SearchContext.SCALING_POLICIES)

    is_visible = target is not None and target["Namespace"] == "default"
    assert list(found.matches.get(SearchContext.SCALING_POLICIES) or ()) == ([policy_id] if is_visible else [])


def test_a_record_that_the_caller_must_not_see_does_not_hide_the_others() -> None:
    state = AState()
    for namespace in ("a", "b", "c"):
        store_job(state, f"web-{namespace}", namespace=namespace)
    rights = get_rights([f'namespace "{namespace}" {{ policy = "read" }}' for namespace in ("a", "c")])

    found = search_fuzzy(state.replica, [SearchContext.JOBS], "web", rights, namespace="*", limits=USUAL_SEARCH_LIMITS)

    assert sorted(list_names(run_search(found)[0])) == ["web-a", "web-c"]
