"""Versions of a job: tags, stability, reverting (jobs.md 1.3 and 4)."""

from typing import Any

import pytest

from tests.builders import a_group, a_job
from tests.kit.state import SETTINGS, AState, Refused
from wharf.cluster.operations.jobs import registration as jobs
from wharf.cluster.operations.jobs import versions
from wharf.cluster.state.tables import JOB_SUBMISSIONS, JOB_VERSIONS, SUBMISSIONS_OF_JOB
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, Submission, VersionTag
from wharf.contract.model.refusal import Refusal, RefusalCode


def with_versions(count: int) -> AState:
    """A state in which `shop` has this many versions, told apart by their priority: 1, 2, 3 ..."""
    state = AState()
    for priority in range(1, count + 1):
        state.register(a_job(priority=priority), submission=Submission(namespace="", job_id="", source=str(priority)))
    return state


def version(state: AState, number: int) -> Job:
    found = state.replica.get(JOB_VERSIONS, "default", "shop", number)
    assert found is not None, f"no version {number}"
    return found


def tag(state: AState, name: str = "golden", description: str = "", **options: Any) -> versions.VersionTagResult:
    wanted = VersionTag(name=name, description=description)
    return state.do(versions.set_version_tag(state.replica, "default", "shop", wanted, state.moment, **options))


def stable(state: AState, number: int, is_stable: bool = True) -> versions.VersionStabilityResult:
    return state.do(versions.set_version_stability(state.replica, "default", "shop", number, is_stable=is_stable))


def revert(state: AState, number: int, **options: Any) -> jobs.JobWriteResult:
    return state.do(jobs.revert_job(state.replica, "default", "shop", number, state.moment, SETTINGS, **options))


def refused(state: AState, action: Any, *args: Any, **options: Any) -> tuple[RefusalCode, str]:
    """What is said; and nothing has changed."""
    index = state.replica.index
    with pytest.raises(Refusal) as refusal:
        action(state, *args, **options)
    assert state.replica.index == index
    return refusal.value.code, refusal.value.text


# -- what is kept


def test_versions_are_listed_newest_first_and_the_newest_shows_the_jobs_status() -> None:
    state = with_versions(3)
    job = state.job()
    state.with_allocation(job)  # Now it runs.

    found = versions.list_versions(state.replica, "default", "shop")

    assert [(each.version, each.status) for each in found] == [(2, "running"), (1, "pending"), (0, "pending")]


def test_a_job_that_nobody_knows_has_no_versions() -> None:
    assert versions.list_versions(AState().replica, "default", "shop") == []


def test_as_many_versions_are_kept_as_the_server_is_told() -> None:
    state = AState()
    for priority in range(1, 6):
        registration = jobs.JobRegistration(job=a_job(priority=priority))
        state.do(jobs.register_job(state.replica, registration, state.moment, JobSettings(versions_kept=2)))

    assert [each.version for each in versions.list_versions(state.replica, "default", "shop")] == [4, 3]


def test_sources_go_with_their_versions() -> None:
    state = with_versions(8)

    assert sorted(each.version for each in state.replica.list_by_index(SUBMISSIONS_OF_JOB, "default", "shop")) == [
        2,
        3,
        4,
        5,
        6,
        7,
    ]


# -- tags


def test_a_tag_names_one_version_and_says_when_it_was_given() -> None:
    state = with_versions(2)

    done = tag(state, description="the good one", version=0)

    assert done.tag == VersionTag(name="golden", description="the good one", tagged_time=state.now_ns)
    assert version(state, 0).version_tag == done.tag
    assert version(state, 1).version_tag is None
    assert state.job().version_tag is None


def test_tagging_moves_the_modify_index_of_the_version_and_neither_its_number_nor_its_job_modify_index() -> None:
    state = with_versions(2)
    before = version(state, 0)

    done = tag(state, version=0)

    after = version(state, 0)
    assert (after.modify_index, after.version, after.job_modify_index) == (done.index, 0, before.job_modify_index)


def test_the_latest_version_can_be_tagged_without_knowing_its_number() -> None:
    state = with_versions(3)

    tag(state, is_latest=True)

    assert (
        version(state, 2).version_tag == state.job().version_tag == VersionTag(name="golden", tagged_time=state.now_ns)
    )


def test_the_same_name_on_the_same_version_updates_the_description() -> None:
    state = with_versions(1)
    tag(state, description="old")

    tag(state, description="new")

    assert version(state, 0).version_tag == VersionTag(name="golden", description="new", tagged_time=state.now_ns)


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
def test_a_tag_that_cannot_be_given_is_refused(options: dict[str, Any], code: RefusalCode, text: str) -> None:
    state = with_versions(2)
    tag(state, version=0)

    assert refused(state, tag, **options) == (code, text)


def test_a_tag_is_taken_off_and_the_answer_is_an_empty_one() -> None:
    state = with_versions(1)
    tag(state)

    done = state.do(versions.delete_version_tag(state.replica, "default", "shop", "golden"))

    assert done.tag == VersionTag()
    assert (version(state, 0).version_tag, state.job().version_tag) == (None, None)


def test_taking_off_a_tag_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refusal, match='tag "golden" not found on job "shop"'):
        versions.delete_version_tag(with_versions(1).replica, "default", "shop", "golden")


def test_two_who_give_one_name_to_two_versions_are_in_conflict() -> None:
    state = with_versions(3)
    second = versions.set_version_tag(
        state.replica, "default", "shop", VersionTag(name="golden"), state.moment, version=1
    )
    tag(state, version=0)

    with pytest.raises(Refused):
        state.do(second)


# -- stability


def test_a_version_is_marked_stable_and_only_its_modify_index_moves() -> None:
    state = with_versions(2)
    before = state.job()

    done = stable(state, 1)

    job = state.job()
    assert (job.stable, job.version, job.job_modify_index, job.modify_index) == (
        True,
        before.version,
        before.job_modify_index,
        done.index,
    )


def test_marking_an_older_version_changes_only_the_named_version() -> None:
    state = with_versions(2)

    stable(state, 0)

    assert (version(state, 0).stable, version(state, 1).stable) == (True, False)
    assert (state.job().version, state.job().stable) == (1, False)


def test_marking_what_is_marked_already_writes_nothing() -> None:
    state = with_versions(1)
    stable(state, 0)
    index = state.replica.index

    stable(state, 0)

    assert state.replica.index == index


@pytest.mark.parametrize("number", [7, -1])
def test_marking_a_version_that_is_not_there_is_refused(number: int) -> None:
    told = refused(with_versions(1), stable, number)

    assert told == (RefusalCode.NOT_FOUND, f'job "shop" in namespace "default" at version {number} not found')


# -- going back


def test_a_revert_registers_a_copy_of_the_version_as_a_new_one_that_is_not_stable_and_has_no_tag() -> None:
    state = with_versions(2)
    tag(state, version=0)
    stable(state, 0)

    done = revert(state, 0)

    job = state.job()
    assert (job.version, job.priority, job.stable, job.version_tag) == (2, 1, False, None)
    assert done.job_modify_index == job.job_modify_index == done.index
    assert state.evaluations()[-1].triggered_by == "job-register"


def test_a_revert_keeps_the_source_of_the_version() -> None:
    state = with_versions(2)

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
def test_a_revert_that_cannot_be_is_refused(number: int, options: dict[str, Any], code: RefusalCode, text: str) -> None:
    assert refused(with_versions(2), revert, number, **options) == (code, text)


def test_a_revert_of_a_job_that_nobody_knows_is_refused() -> None:
    assert refused(AState(), revert, 0) == (RefusalCode.NOT_FOUND, 'job "shop" not found')


def test_a_revert_may_say_which_version_must_stand() -> None:
    state = with_versions(2)

    revert(state, 0, expected_version=1)

    assert state.job().version == 2


def test_a_revert_starts_a_stopped_job_again() -> None:
    state = AState()
    state.register(a_job("shop", a_group(count=2)))
    state.do(jobs.deregister_job(state.replica, "default", "shop", state.moment))

    revert(state, 0)

    assert (state.job().stop, state.job().version) == (False, 2)


def test_a_server_that_keeps_far_fewer_versions_drops_them_bit_by_bit() -> None:
    state = AState()

    def register(priority: int, kept: int) -> int:
        """How many versions there are afterwards."""
        registration = jobs.JobRegistration(job=a_job(priority=priority))
        state.do(jobs.register_job(state.replica, registration, state.moment, JobSettings(versions_kept=kept)))
        return len(versions.list_versions(state.replica, "default", "shop"))

    for priority in range(1, 41):
        register(priority, 50)

    assert [register(priority, 5) for priority in range(41, 46)] == [31, 22, 13, 5, 5]
