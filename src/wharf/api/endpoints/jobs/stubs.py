"""Jobs as lists show them."""

from typing import Any

from wharf.model.job import Job
from wharf.state import Replica
from wharf.state.tables import SUMMARIES
from wharf.wire import shapes


def job_stub(replica: Replica, job: Job, *, with_meta: bool = False) -> shapes.JobStub:
    meta: dict[str, Any] = {"meta": job.meta} if with_meta and job.meta else {}
    return shapes.JobStub(
        id=job.id,
        parent_id=job.parent_id,
        name=job.name,
        namespace=job.namespace,
        datacenters=job.datacenters or (),
        node_pool=job.node_pool,
        type=job.type,
        priority=job.priority,
        periodic=job.is_periodic,
        parameterized_job=job.is_parameterized,
        stop=job.stop,
        status=job.status,
        status_description=job.status_description,
        job_summary=replica.get(SUMMARIES, job.namespace, job.id),
        create_index=job.create_index,
        modify_index=job.modify_index,
        job_modify_index=job.job_modify_index,
        submit_time=job.submit_time,
        **meta,
    )
