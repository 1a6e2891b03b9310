"""`OverlayReplica`: reads of a replica with a few changed records."""

from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.state import AState
from wharf.cluster.state.overlay import OverlayReplica
from wharf.cluster.state.tables import JOB_VERSIONS, JOBS, JOBS_OF_TYPE, VERSIONS_OF_JOB


def test_an_overlay_returns_changed_records_and_passes_others_through() -> None:
    state = AState()
    state.register(a_job("shop"))
    state.register(a_job("store"))
    changed = a_job("shop", priority=99)

    imagined = OverlayReplica(state.replica, [JOBS.build_put(changed)])

    assert imagined.get(JOBS, "default", "shop") == changed
    assert imagined.get(JOBS, "default", "store") == state.job("store")
    assert imagined.index == state.replica.index


def test_index_reads_include_the_changed_records() -> None:
    state = AState()
    for job_id in ("a", "b", "c"):
        state.register(a_job(job_id))
    new, moved = a_job("d"), a_job("b", type="batch")

    imagined = OverlayReplica(
        state.replica, [JOBS.build_put(new), JOBS.build_put(moved), JOBS.build_delete("default", "c")]
    )

    assert [job.id for job in imagined.list_by_index_sorted(JOBS_OF_TYPE, "service")] == ["a", "d"]
    assert [job.id for job in imagined.list_by_index_sorted(JOBS_OF_TYPE, "service", reverse=True)] == ["d", "a"]
    assert imagined.list_by_index(JOBS_OF_TYPE, "batch") == [moved]
    assert [imagined.count_by_index(JOBS_OF_TYPE, job_type) for job_type in ("service", "batch", "system")] == [2, 1, 0]
    assert imagined.get(JOBS, "default", "c") is None


def test_an_overlay_does_not_change_the_replica() -> None:
    state = AState()
    state.register(a_job("shop"))
    job = state.job()

    OverlayReplica(state.replica, [JOBS.build_delete("default", "shop")])

    assert state.job() == job


def test_index_reads_of_several_attributes_include_the_changed_records() -> None:
    state = AState()
    state.register(a_job("shop"))
    stored = state.job("shop")
    (version,) = state.replica.list_by_index(VERSIONS_OF_JOB, "default", "shop")
    new, other = replace(version, version=1), replace(version, id="store")

    imagined = OverlayReplica(state.replica, map(JOB_VERSIONS.build_put, (new, other)))

    assert imagined.list_by_index(VERSIONS_OF_JOB, "default", "shop") == [version, new]
    assert list(imagined.iter_by_index(VERSIONS_OF_JOB, "default", "store")) == [(JOB_VERSIONS.get_key(other), other)]
    assert imagined.list_by_index(JOBS_OF_TYPE, "service") == [stored]
    assert (imagined.epoch, imagined.epoch_since) == (state.replica.epoch, state.replica.epoch_since)
