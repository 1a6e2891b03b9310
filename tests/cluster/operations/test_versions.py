"""Versions of a job: tags, stability, reverting (jobs.md 1.3 and 4)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, some_job_settings
from tests.kit.state import SETTINGS, AState, Refused
from wharf.cluster.operations.jobs import registration as jobs
from wharf.cluster.operations.jobs import versions
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOB_VERSIONS, SUBMISSIONS_OF_JOB, VERSIONS_OF_JOB
from wharf.contract.model.jobs.job import Job, Submission, VersionTag
from wharf.contract.model.refusal import Refusal, RefusalCode


def make_state(count: int) -> AState:
    """Return a state in which `shop` has this many versions, with the priorities 1, 2, 3 ..."""
    state = AState()
    for priority in range(1, count + 1):
        state.register(a_job(priority=priority), submission=Submission(namespace="", job_id="", source=str(priority)))
    return state


def get_version(state: AState, number: int) -> Job:
    found = state.replica.get(JOB_VERSIONS, "default", "shop", number)
    assert found is not None, f"no version {number}"
    return found


def set_tag(state: AState, name: str = "golden", description: str = "", **options: Any) -> versions.VersionTagResult:
    desired = VersionTag(name=name, description=description)
    return state.do(versions.set_version_tag(state.replica, "default", "shop", desired, state.moment, **options))


def set_stable(state: AState, number: int, is_stable: bool = True) -> versions.VersionStabilityResult:
    return state.do(versions.set_version_stability(state.replica, "default", "shop", number, is_stable=is_stable))


def revert(state: AState, number: int, **options: Any) -> jobs.JobWriteResult:
    return state.do(jobs.revert_job(state.replica, "default", "shop", number, state.moment, SETTINGS, **options))


def expect_refusal(state: AState, action: Any, *args: Any, **options: Any) -> tuple[RefusalCode, str]:
    """Return code and text of the refusal, and check that nothing changed."""
    index = state.replica.index
    with pytest.raises(Refusal) as refusal:
        action(state, *args, **options)
    assert state.replica.index == index
    return refusal.value.code, refusal.value.text


# -- stored versions


def test_versions_are_listed_newest_first_and_the_newest_shows_the_jobs_status() -> None:
    state = make_state(3)
    job = state.job()
    state.with_allocation(job)  # The allocation makes it a running job.

    found = versions.list_versions(state.replica, "default", "shop")

    assert [(each.version, each.status) for each in found] == [(2, "running"), (1, "pending"), (0, "pending")]


def test_an_unknown_job_has_no_versions() -> None:
    assert versions.list_versions(AState().replica, "default", "shop") == []


def test_the_configured_number_of_versions_is_stored() -> None:
    state = AState()
    for priority in range(1, 6):
        registration = jobs.JobRegistration(job=a_job(priority=priority))
        state.do(jobs.register_job(state.replica, registration, state.moment, some_job_settings(versions_kept=2)))

    assert [each.version for each in versions.list_versions(state.replica, "default", "shop")] == [4, 3]


def test_versions_of_a_purged_job_of_the_same_name_do_not_displace_versions_of_the_new_job() -> None:
    state = make_state(1)
    former = replace(get_version(state, 0), create_index=1)
    # A purge deletes many versions in several writes, so that some are left when the name is used again.
    state.put(*(JOB_VERSIONS.build_put(replace(former, version=number)) for number in range(10, 20)))

    for priority in range(2, 9):
        state.register(a_job(priority=priority))

    stored = [each.version for each in state.replica.list_by_index(VERSIONS_OF_JOB, "default", "shop")]
    assert [each.version for each in versions.list_versions(state.replica, "default", "shop")] == [7, 6, 5, 4, 3]
    assert sorted(stored) == [*range(3, 8), *range(10, 20)]


@pytest.mark.parametrize(
    "action",
    [
        lambda state: revert(state, 7),
        lambda state: set_stable(state, 7),
        lambda state: set_tag(state, version=7),
    ],
)
def test_a_version_of_a_purged_job_of_the_same_name_is_not_found(action: Any) -> None:
    state = make_state(2)
    old = replace(get_version(state, 0), version=7, create_index=1)
    state.put(JOB_VERSIONS.build_put(old))
    assert old.create_index != state.job().create_index

    assert expect_refusal(state, action)[0] is RefusalCode.NOT_FOUND
    with pytest.raises(Refusal, match="7"):
        action(state)


def test_a_new_version_conflicts_with_a_change_of_the_version_that_it_replaces() -> None:
    state = make_state(1)
    state.with_allocation(state.job())  # The last status of the version, running, is stored with the next version.
    registration = jobs.JobRegistration(job=a_job(priority=70))
    decision = jobs.register_job(state.replica, registration, state.moment, SETTINGS)
    state.put(JOB_VERSIONS.build_put(replace(get_version(state, 0), stable=True)))

    with pytest.raises(Refused):
        state.do(decision)
    assert get_version(state, 0).stable


def test_sources_are_deleted_with_their_versions() -> None:
    state = make_state(8)

    assert sorted(each.version for each in state.replica.list_by_index(SUBMISSIONS_OF_JOB, "default", "shop")) == [
        3,
        4,
        5,
        6,
        7,
    ]


# -- tags


def test_a_tag_names_one_version_and_has_a_time() -> None:
    state = make_state(2)

    result = set_tag(state, description="the good one", version=0)

    assert result.tag == VersionTag(name="golden", description="the good one", tagged_time=state.now_ns)
    assert get_version(state, 0).version_tag == result.tag
    assert get_version(state, 1).version_tag is None
    assert state.job().version_tag is None


def test_tagging_changes_only_the_modify_index_of_the_version() -> None:
    state = make_state(2)
    before = get_version(state, 0)

    result = set_tag(state, version=0)

    after = get_version(state, 0)
    assert (after.modify_index, after.version, after.job_modify_index) == (result.index, 0, before.job_modify_index)


def test_the_latest_version_can_be_tagged_without_knowing_its_number() -> None:
    state = make_state(3)

    set_tag(state, is_latest=True)

    assert (
        get_version(state, 2).version_tag
        == state.job().version_tag
        == VersionTag(name="golden", tagged_time=state.now_ns)
    )


def test_the_same_name_on_the_same_version_updates_the_description() -> None:
    state = make_state(1)
    set_tag(state, description="old")

    set_tag(state, description="new")

    assert get_version(state, 0).version_tag == VersionTag(name="golden", description="new", tagged_time=state.now_ns)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"version": 1}, RefusalCode.INVALID, 'tag "golden" already exists on a different version of job "shop"'),
        ({"version": 1, "is_latest": True}, RefusalCode.INVALID, "version must be zero when tagging latest, got: 1"),
        ({"version": 9}, RefusalCode.NOT_FOUND, 'job "shop" version 9 not found'),
        ({"version": -1}, RefusalCode.NOT_FOUND, 'job "shop" version -1 not found'),
        ({"name": ""}, RefusalCode.INVALID, "version tag name must not be empty"),
        ({"description": "x" * 1_001}, RefusalCode.INVALID, "version tag description must be under 1000 characters"),
    ],
)
def test_an_invalid_tag_is_refused(options: dict[str, Any], code: RefusalCode, text: str) -> None:
    state = make_state(2)
    set_tag(state, version=0)

    assert expect_refusal(state, set_tag, **options) == (code, text)


def test_deleting_a_tag_returns_an_empty_tag() -> None:
    state = make_state(1)
    set_tag(state)

    result = state.do(versions.delete_version_tag(state.replica, "default", "shop", "golden"))

    assert result.tag == VersionTag()
    assert (get_version(state, 0).version_tag, state.job().version_tag) == (None, None)


def test_deleting_an_unknown_tag_is_refused() -> None:
    with pytest.raises(Refusal, match='tag "golden" not found on job "shop"'):
        versions.delete_version_tag(make_state(1).replica, "default", "shop", "golden")


def test_two_requests_that_give_one_name_to_two_versions_conflict() -> None:
    state = make_state(3)
    second = versions.set_version_tag(
        state.replica, "default", "shop", VersionTag(name="golden"), state.moment, version=1
    )
    set_tag(state, version=0)

    with pytest.raises(Refused):
        state.do(second)


# -- stability


def test_marking_a_version_stable_changes_only_its_modify_index() -> None:
    state = make_state(2)
    before = state.job()

    result = set_stable(state, 1)

    job = state.job()
    assert (job.stable, job.version, job.job_modify_index, job.modify_index) == (
        True,
        before.version,
        before.job_modify_index,
        result.index,
    )


def test_marking_an_older_version_changes_only_the_named_version() -> None:
    state = make_state(2)

    set_stable(state, 0)

    assert (get_version(state, 0).stable, get_version(state, 1).stable) == (True, False)
    assert (state.job().version, state.job().stable) == (1, False)


def test_marking_a_stable_version_writes_nothing() -> None:
    state = make_state(1)
    set_stable(state, 0)
    index = state.replica.index

    set_stable(state, 0)

    assert state.replica.index == index


@pytest.mark.parametrize("number", [7, -1])
def test_marking_an_unknown_version_is_refused(number: int) -> None:
    result = expect_refusal(make_state(1), set_stable, number)

    assert result == (RefusalCode.NOT_FOUND, f'job "shop" in namespace "default" at version {number} not found')


# -- reverts


def test_a_revert_registers_an_unstable_untagged_copy_of_the_version() -> None:
    state = make_state(2)
    set_tag(state, version=0)
    set_stable(state, 0)

    result = revert(state, 0)

    job = state.job()
    assert (job.version, job.priority, job.stable, job.version_tag) == (2, 1, False, None)
    assert result.job_modify_index == job.job_modify_index == result.index
    assert state.evaluations()[-1].triggered_by == "job-register"


def test_a_revert_keeps_the_source_of_the_version() -> None:
    state = make_state(2)

    revert(state, 0)

    submission = state.replica.get(JOB_SUBMISSIONS, "default", "shop", 2)
    assert submission is not None
    assert submission.source == "1"


@pytest.mark.parametrize(
    ("number", "options", "code", "text"),
    [
        (1, {}, RefusalCode.INVALID, "can't revert to current version"),
        (8, {}, RefusalCode.NOT_FOUND, 'job "shop" in namespace "default" at version 8 not found'),
        (-1, {}, RefusalCode.NOT_FOUND, 'job "shop" in namespace "default" at version -1 not found'),
        (0, {"expected_version": 0}, RefusalCode.INVALID, "Current job has version 1; enforcing version 0"),
    ],
)
def test_an_invalid_revert_is_refused(number: int, options: dict[str, Any], code: RefusalCode, text: str) -> None:
    assert expect_refusal(make_state(2), revert, number, **options) == (code, text)


def test_a_revert_of_an_unknown_job_is_refused() -> None:
    assert expect_refusal(AState(), revert, 0) == (RefusalCode.NOT_FOUND, 'job "shop" not found')


def test_a_revert_can_require_the_current_version() -> None:
    state = make_state(2)

    revert(state, 0, expected_version=1)

    assert state.job().version == 2


def test_a_revert_starts_a_stopped_job_again() -> None:
    state = AState()
    state.register(a_job("shop", a_group(count=2)))
    state.do(jobs.deregister_job(state.replica, "default", "shop", state.moment, settings=SETTINGS))

    revert(state, 0)

    assert (state.job().stop, state.job().version) == (False, 2)


def test_a_much_lower_version_limit_deletes_versions_in_steps() -> None:
    state = AState()

    def register(priority: int, stored: int) -> int:
        """Register the job and return the number of stored versions."""
        registration = jobs.JobRegistration(job=a_job(priority=priority))
        state.do(jobs.register_job(state.replica, registration, state.moment, some_job_settings(versions_kept=stored)))
        return len(versions.list_versions(state.replica, "default", "shop"))

    for priority in range(1, 41):
        register(priority, 50)

    assert [register(priority, 5) for priority in range(41, 46)] == [31, 22, 13, 5, 5]


def test_a_job_whose_current_version_was_not_stored_can_be_changed() -> None:
    state = make_state(1)
    state.put(JOB_VERSIONS.build_delete("default", "shop", 0))

    state.register(a_job(priority=70))

    assert [each.version for each in versions.list_versions(state.replica, "default", "shop")] == [1]


@pytest.mark.parametrize(
    ("tag", "is_accepted"),
    [
        (VersionTag(name="x" * versions.MAX_TAG_NAME_BYTES), True),
        (VersionTag(name="x" * (versions.MAX_TAG_NAME_BYTES + 1)), False),
        (VersionTag(name="x", description="x" * versions.MAX_TAG_DESCRIPTION_BYTES), True),
        (VersionTag(name="x", description="x" * (versions.MAX_TAG_DESCRIPTION_BYTES + 1)), False),
    ],
)
def test_the_name_and_the_description_of_a_tag_may_have_the_largest_size(tag: VersionTag, is_accepted: bool) -> None:
    state = make_state(1)

    if not is_accepted:
        assert expect_refusal(state, set_tag, tag.name, tag.description)[0] is RefusalCode.INVALID
        return
    assert set_tag(state, tag.name, tag.description).tag == replace(tag, tagged_time=state.now_ns)
