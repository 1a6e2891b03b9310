"""What can be asked about what the scheduler makes of jobs: evaluations, allocations, deployments, services, scaling."""

from collections.abc import Sequence
from typing import Unpack

from wharf.client.calls import Call, CallOptions, Listing, ListOptions, Read, ReadOptions, WriteOptions
from wharf.client.methods import M, Noun, calls, lists, reads
from wharf.model.allocation import AllocationStub
from wharf.model.deployment import Deployment
from wharf.model.evaluation import Evaluation
from wharf.model.explanation import AllocationExplanation, EvaluationExplanation
from wharf.model.registration import ServiceRegistration
from wharf.model.scaling import ScalingPolicy
from wharf.wire import client_shapes, search_shapes, work_shapes
from wharf.wire.client_shapes import Figures


class Evaluations(Noun[M]):
    @lists("evaluation.list")
    def list(self, *, status: str = "", job: str = "", **options: Unpack[ListOptions]) -> Listing[Evaluation]:
        return Listing(options, status=status, job=job)

    @reads("evaluation.count")
    def count(self, **options: Unpack[ListOptions]) -> Read[work_shapes.EvaluationCount]:
        return Read(options)

    @reads("evaluation.read")
    def read(self, eval_id: str, *, related: bool = False, **options: Unpack[ReadOptions]) -> Read[Evaluation]:
        return Read(options, eval_id, related="true" if related else "")

    @reads("evaluation.explain")
    def explain(self, eval_id: str, **options: Unpack[ReadOptions]) -> Read[EvaluationExplanation]:
        """Why its job was looked at, what came of it, and what it waits for."""
        return Read(options, eval_id)

    @lists("evaluation.allocations")
    def allocations(self, eval_id: str, **options: Unpack[ReadOptions]) -> Listing[AllocationStub]:
        return Listing(options, eval_id)

    @calls("evaluation.delete")
    def delete(
        self, eval_ids: Sequence[str] = (), *, filter: str = "", **options: Unpack[WriteOptions]
    ) -> Call[work_shapes.EvaluationDeleteResponse]:
        """Those of the ids, or those that the filter matches."""
        body = work_shapes.EvaluationDeleteRequest(eval_ids=tuple(eval_ids) or None, filter=filter)
        return Call(options, body=body)


class Allocations(Noun[M]):
    @lists("allocation.list")
    def list(
        self, *, resources: bool = False, task_states: bool = True, **options: Unpack[ListOptions]
    ) -> Listing[AllocationStub]:
        return Listing(options, resources=resources, task_states=None if task_states else "false")

    @reads("allocation.read")
    def read(self, alloc_id: str, **options: Unpack[ReadOptions]) -> Read[work_shapes.AllocationShown]:
        return Read(options, alloc_id)

    @reads("allocation.explain")
    def explain(self, alloc_id: str, **options: Unpack[ReadOptions]) -> Read[AllocationExplanation]:
        """Why it is where it is, what it waits for, and what led to it."""
        return Read(options, alloc_id)

    @lists("allocation.services")
    def services(self, alloc_id: str, **options: Unpack[ReadOptions]) -> Listing[ServiceRegistration]:
        return Listing(options, alloc_id)

    @calls("allocation.stop")
    def stop(
        self,
        alloc_id: str,
        *,
        no_shutdown_delay: bool = False,
        reschedule: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Call[work_shapes.AllocationStopResponse]:
        return Call(options, alloc_id, no_shutdown_delay=no_shutdown_delay, reschedule=reschedule)

    # -- what the node of the allocation answers

    @calls("client.restart")
    def restart(
        self, alloc_id: str, *, task: str = "", all_tasks: bool = False, **options: Unpack[WriteOptions]
    ) -> Call[client_shapes.IndexResponse]:
        return Call(options, alloc_id, body=client_shapes.AllocRestartRequest(task_name=task, all_tasks=all_tasks))

    @calls("client.signal")
    def signal(
        self, alloc_id: str, signal: str, *, task: str = "", **options: Unpack[WriteOptions]
    ) -> Call[client_shapes.IndexResponse]:
        return Call(options, alloc_id, body=client_shapes.AllocSignalRequest(task=task, signal=signal))

    @calls("client.pause_state")
    def pause_state(
        self, alloc_id: str, *, task: str = "", **options: Unpack[CallOptions]
    ) -> Call[client_shapes.AllocPauseState]:
        return Call(options, alloc_id, task=task)

    @calls("client.pause")
    def pause(
        self, alloc_id: str, schedule_state: str, *, task: str = "", **options: Unpack[WriteOptions]
    ) -> Call[client_shapes.IndexResponse]:
        return Call(options, alloc_id, body=client_shapes.AllocPauseRequest(task=task, schedule_state=schedule_state))

    @calls("client.alloc_stats")
    def stats(
        self, alloc_id: str, *, task: str = "", history: str = "", **options: Unpack[CallOptions]
    ) -> Call[Figures]:
        """`history`: how far back what was is told too, as `5m`."""
        return Call(options, alloc_id, task=task, history=history)

    @calls("client.checks")
    def checks(self, alloc_id: str, **options: Unpack[CallOptions]) -> Call[Figures]:
        return Call(options, alloc_id)

    @calls("client.alloc_gc_now")
    def collect(self, alloc_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        """Have the node free what it holds."""
        return Call(options, alloc_id)


class Deployments(Noun[M]):
    @lists("deployment.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[Deployment]:
        return Listing(options)

    @reads("deployment.read")
    def read(self, deployment_id: str, **options: Unpack[ReadOptions]) -> Read[Deployment]:
        return Read(options, deployment_id)

    @lists("deployment.allocations")
    def allocations(self, deployment_id: str, **options: Unpack[ReadOptions]) -> Listing[AllocationStub]:
        return Listing(options, deployment_id)

    @calls("deployment.fail")
    def fail(self, deployment_id: str, **options: Unpack[WriteOptions]) -> Call[work_shapes.DeploymentUpdateResponse]:
        return Call(options, deployment_id)

    @calls("deployment.pause")
    def pause(
        self, deployment_id: str, *, pause: bool = True, **options: Unpack[WriteOptions]
    ) -> Call[work_shapes.DeploymentUpdateResponse]:
        """`pause=False` lets it go on."""
        body = work_shapes.DeploymentPauseRequest(deployment_id=deployment_id, pause=pause)
        return Call(options, deployment_id, body=body)

    @calls("deployment.promote")
    def promote(
        self, deployment_id: str, groups: Sequence[str] = (), **options: Unpack[WriteOptions]
    ) -> Call[work_shapes.DeploymentUpdateResponse]:
        """Without groups: all of them that have canaries."""
        body = work_shapes.DeploymentPromoteRequest(
            deployment_id=deployment_id, all=not groups, groups=tuple(groups) or None
        )
        return Call(options, deployment_id, body=body)

    @calls("deployment.unblock")
    def unblock(
        self, deployment_id: str, **options: Unpack[WriteOptions]
    ) -> Call[work_shapes.DeploymentUpdateResponse]:
        return Call(options, deployment_id, body=work_shapes.DeploymentUnblockRequest(deployment_id=deployment_id))

    @calls("deployment.health")
    def set_health(
        self,
        deployment_id: str,
        *,
        healthy: Sequence[str] = (),
        unhealthy: Sequence[str] = (),
        **options: Unpack[WriteOptions],
    ) -> Call[work_shapes.DeploymentUpdateResponse]:
        """Of allocations, by their ids."""
        body = work_shapes.DeploymentHealthRequest(
            deployment_id=deployment_id,
            healthy_allocation_ids=tuple(healthy),
            unhealthy_allocation_ids=tuple(unhealthy),
        )
        return Call(options, deployment_id, body=body)


class Services(Noun[M]):
    @lists("service.list")
    def list(self, **options: Unpack[ListOptions]) -> Listing[work_shapes.ServicesOfNamespace]:
        return Listing(options)

    @lists("service.read")
    def read(self, name: str, *, choose: str = "", **options: Unpack[ListOptions]) -> Listing[ServiceRegistration]:
        """Its instances. `choose`, as `2|key`: so many, always the same for the same key."""
        return Listing(options, name, choose=choose)

    @calls("service.delete")
    def delete(self, name: str, service_id: str, **options: Unpack[WriteOptions]) -> Call[None]:
        return Call(options, name, service_id)


class Scaling(Noun[M]):
    @lists("scaling.list")
    def list(
        self, *, job: str = "", type: str = "", **options: Unpack[ListOptions]
    ) -> Listing[work_shapes.ScalingPolicyStub]:
        return Listing(options, job=job, type=type)

    @reads("scaling.read")
    def read(self, policy_id: str, **options: Unpack[ReadOptions]) -> Read[ScalingPolicy]:
        return Read(options, policy_id)


class Search(Noun[M]):
    @calls("search.prefix")
    def prefix(
        self, prefix: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> Call[search_shapes.SearchResponse]:
        return Call(options, body=search_shapes.SearchRequest(prefix=prefix, context=context))

    @calls("search.fuzzy")
    def fuzzy(
        self, text: str, *, context: str = "all", **options: Unpack[CallOptions]
    ) -> Call[search_shapes.FuzzySearchResponse]:
        return Call(options, body=search_shapes.FuzzySearchRequest(text=text, context=context))
