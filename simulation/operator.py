"""Simulated operators: they drain nodes, change their eligibility, control deployments, and change the quota."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from simulation.jobs import is_failing
from simulation.models import PutRecordValue, RecordResponse, RecordState, UnchangedRecord
from simulation.user import SimulatedUser, UserAction
from wharf.contract.client import Unreachable
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE, Namespace
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import SECOND
from wharf.contract.wire.nodes.messages import DrainSpec

QUOTA_NAME: Final = "team"
REGION: Final = "global"
NO_DEADLINE: Final = 0
FORCED_DEADLINE: Final = -1


class Operator(SimulatedUser):
    """A client that performs the actions of an operator."""

    @property
    def weighted_actions(self) -> Sequence[tuple[int, UserAction]]:
        return (
            (4, self._set_eligibility), (2, self._drain), (2, self._cancel_drain), (3, self._control_deployment),
            (1, self._change_quota),
        )  # fmt: skip

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def _set_eligibility(self) -> None:
        eligible = self._random.random() < 0.7

        async def set_eligibility(node_id: str) -> RecordResponse:
            done = await self._client.nodes.set_eligibility(node_id, eligible=eligible)
            return RecordState(eligible, 0) if done.index else UnchangedRecord(eligible)

        await self._change_random_node(eligible, set_eligibility)

    async def _drain(self) -> None:
        """Drain a node. It stays ineligible afterwards, also if it is empty."""
        deadline_ns = self._random.choice([NO_DEADLINE, FORCED_DEADLINE, 5 * SECOND, 40 * SECOND])
        spec = DrainSpec(deadline=deadline_ns, ignore_system_jobs=self._random.random() < 0.5)

        async def drain(node_id: str) -> RecordResponse:
            await self._client.nodes.drain(node_id, spec)
            return RecordState(False, 0)

        await self._change_random_node(False, drain)

    async def _cancel_drain(self) -> None:
        async def cancel(node_id: str) -> RecordResponse:
            await self._client.nodes.drain(node_id, None, mark_eligible=True)
            return RecordState(True, 0)

        await self._change_random_node(True, cancel)

    async def _change_random_node(self, eligible: bool, send: Callable[[str], Awaitable[RecordResponse]]) -> None:
        """Change the eligibility of a random node, and record the call."""
        host = self._random.choice(self._cluster.nodes)
        if host.node is None:
            return
        node_id = host.node.id
        await self._write(
            host.name, PutRecordValue(eligible), lambda: send(node_id), history=self._records.eligibility_history
        )

    # -- deployments -------------------------------------------------------------------------------------------------

    async def _control_deployment(self) -> None:
        """Pause, resume, promote or fail a random active deployment."""
        active = await self._try_call(self._list_active_deployments())
        if not active:
            return
        deployment: Deployment = self._random.choice(active)
        action = (
            "resume"
            if deployment.status is DeploymentStatus.PAUSED
            else self._random.choice(["pause", "promote", "fail"])
        )
        await self._try_call(self._send_action(deployment, action))

    async def _list_active_deployments(self) -> list[Deployment]:
        reply = await self._client.deployments.list()
        return [deployment for deployment in reply.value if deployment.is_active]

    async def _send_action(self, deployment: Deployment, action: str) -> None:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "pause": lambda: self._client.deployments.pause(deployment.id),
            "resume": lambda: self._client.deployments.pause(deployment.id, pause=False),
            "promote": lambda: self._client.deployments.promote(deployment.id),
            "fail": lambda: self._client.deployments.fail(deployment.id),
        }
        reply = await calls[action]()
        self._log(f"{action} deployment {deployment.id[:8]}: {reply.index}", deployment.job_id, deployment.id)

    # -- the quota ---------------------------------------------------------------------------------------------------

    async def _change_quota(self) -> None:
        """Set a wide quota or none in most cases, because little happens under a narrow one."""
        limit = RegionLimit(
            count=self._random.choice([0, 0, 30, 80]),
            cpu=self._random.choice([0, 0, 10_000, 40_000]),
            memory_mb=self._random.choice([0, 0, 5_000, 20_000]),
        )
        quota = Quota(name=QUOTA_NAME, limits=(QuotaLimit(region=REGION, region_limit=limit),))
        name = QUOTA_NAME if self._random.random() < 0.5 else ""
        await self._try_call(self._put_quota(quota, Namespace(name=DEFAULT_NAMESPACE, quota=name)))

    async def _put_quota(self, quota: Quota, namespace: Namespace) -> None:
        await self._client.quotas.store(quota)
        await self._client.namespaces.store(namespace)
        self._log(f"quota {quota.limits} for {namespace.quota or 'no namespace'}", QUOTA_NAME)

    # -- at the end ---------------------------------------------------------------------------------------------------

    async def tidy_up(self) -> None:
        """Resume paused deployments, and stop jobs that always fail."""
        for deployment in await self._list_active_deployments():
            if deployment.status is DeploymentStatus.PAUSED:
                await self._try_call(self._send_action(deployment, "resume"))
        for sketch in self._records.jobs:
            try:
                job = await self._read_checked_job(sketch.id)
            except (Refusal, Unreachable) as error:
                self._log(f"read {sketch.id}: {error}", sketch.id)
                continue
            if job is not None and not job.stop and is_failing(job):
                await self._stop_job(job.id)
