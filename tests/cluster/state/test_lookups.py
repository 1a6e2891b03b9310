"""Look-ups that follow a reference: the record must still be the one that is meant."""

from msgspec.structs import replace

from tests.cluster.state.inventory import make_write
from tests.cluster.state.test_adopted_records import PLACED
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import JOB_VERSIONS
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Batch


def test_the_job_of_an_allocation_is_the_version_of_the_job_that_it_was_placed_for() -> None:
    replica = Replica([JOB_VERSIONS])
    jobs = [Job(id="shop", version=version, create_index=7) for version in (0, 1)]
    logged = replica.encode_write(make_write(*map(JOB_VERSIONS.build_put, jobs)), write_id="w")
    replica.apply_batch(Batch(9, "w", "test", logged.cause, logged.changes))
    allocation = replace(PLACED, job_id="shop", job_version=1, job_create_index=7)

    found = find_allocation_job(replica, allocation)

    assert (found is not None and found.version) == 1
    # A later job has the same ID, or the version is not stored any more.
    for other in (replace(allocation, job_create_index=6), replace(allocation, job_version=2)):
        assert find_allocation_job(replica, other) is None
