"""Those who keep the cluster: they drain nodes, switch them, pause, promote and fail deployments, and change the quota."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from simulation.jobs import SECOND_NS, is_failing
from simulation.models import PutRecordValue, RecordResponse, RecordState, UnchangedRecord
from simulation.user import SimulatedUser, UserAction
from wharf.contract.client import Unreachable
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE, Namespace
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.nodes.messages import DrainSpec

QUOTA_NAME: Final = "team"
REGION: Final = "global"
NO_DEADLINE: Final = 0
FORCED_DEADLINE: Final = -1


class Operator(SimulatedUser):
    @property
    def weighted_actions(self) -> Sequence[tuple[int, UserAction]]:
        return (
            (4, self._switch_node), (2, self._drain), (2, self._call_off_drain), (3, self._move_deployment),
            (1, self._change_quota),
        )  # fmt: skip

    # -- nodes -----------------------------------------------------------------------------------------------------

    async def _switch_node(self) -> None:
        eligible = self._random.random() < 0.7

        async def switch(node_id: str) -> RecordResponse:
            done = await self._client.nodes.set_eligibility(node_id, eligible=eligible)
            return RecordState(eligible, 0) if done.index else UnchangedRecord(eligible)

        await self._switch_some_node(eligible, switch)

    async def _drain(self) -> None:
        """A node that is drained takes no new work, also when it is empty."""
        deadline_ns = self._random.choice([NO_DEADLINE, FORCED_DEADLINE, 5 * SECOND_NS, 40 * SECOND_NS])
        spec = DrainSpec(deadline=deadline_ns, ignore_system_jobs=self._random.random() < 0.5)

        async def drain(node_id: str) -> RecordResponse:
            await self._client.nodes.drain(node_id, spec)
            return RecordState(False, 0)

        await self._switch_some_node(False, drain)

    async def _call_off_drain(self) -> None:
        async def call_off(node_id: str) -> RecordResponse:
            await self._client.nodes.drain(node_id, None, mark_eligible=True)
            return RecordState(True, 0)

        await self._switch_some_node(True, call_off)

    async def _switch_some_node(self, eligible: bool, ask: Callable[[str], Awaitable[RecordResponse]]) -> None:
        host = self._random.choice(self._cluster.nodes)
        if host.node is None:
            return
        node_id = host.node.id
        await self._write(
            host.name, PutRecordValue(eligible), lambda: ask(node_id), history=self._workload.eligibility_history
        )

    # -- deployments -------------------------------------------------------------------------------------------------

    async def _move_deployment(self) -> None:
        active = await self._quietly(self._active_deployments())
        if not active:
            return
        chosen: Deployment = self._random.choice(active)
        word = (
            "resume" if chosen.status is DeploymentStatus.PAUSED else self._random.choice(["pause", "promote", "fail"])
        )
        await self._quietly(self._ask_of(chosen, word))

    async def _active_deployments(self) -> list[Deployment]:
        reply = await self._client.deployments.list()
        return [deployment for deployment in reply.value if deployment.is_active]

    async def _ask_of(self, deployment: Deployment, word: str) -> None:
        asks: dict[str, Callable[[], Awaitable[Any]]] = {
            "pause": lambda: self._client.deployments.pause(deployment.id),
            "resume": lambda: self._client.deployments.pause(deployment.id, pause=False),
            "promote": lambda: self._client.deployments.promote(deployment.id),
            "fail": lambda: self._client.deployments.fail(deployment.id),
        }
        reply = await asks[word]()
        self._tell(f"{word} deployment {deployment.id[:8]}: {reply.index}", deployment.job_id, deployment.id)

    # -- the quota ---------------------------------------------------------------------------------------------------

    async def _change_quota(self) -> None:
        """Mostly a wide one or none at all: under a narrow one little happens."""
        limit = RegionLimit(
            count=self._random.choice([0, 0, 30, 80]),
            cpu=self._random.choice([0, 0, 10_000, 40_000]),
            memory_mb=self._random.choice([0, 0, 5_000, 20_000]),
        )
        quota = Quota(name=QUOTA_NAME, limits=(QuotaLimit(region=REGION, region_limit=limit),))
        name = QUOTA_NAME if self._random.random() < 0.5 else ""
        await self._quietly(self._put_quota(quota, Namespace(name=DEFAULT_NAMESPACE, quota=name)))

    async def _put_quota(self, quota: Quota, namespace: Namespace) -> None:
        await self._client.quotas.store(quota)
        await self._client.namespaces.store(namespace)
        self._tell(f"quota {quota.limits} for {namespace.quota or 'nobody'}", QUOTA_NAME)

    # -- at the end ---------------------------------------------------------------------------------------------------

    async def tidy_up(self) -> None:
        for deployment in await self._active_deployments():
            if deployment.status is DeploymentStatus.PAUSED:
                await self._quietly(self._ask_of(deployment, "resume"))
        for sketch in self._workload.jobs:
            try:
                job = await self._ask_job(sketch.id)
            except (Refusal, Unreachable) as error:
                self._tell(f"read {sketch.id}: {error}", sketch.id)
                continue
            if job is not None and not job.stop and is_failing(job):
                await self._stop_job(job.id)
