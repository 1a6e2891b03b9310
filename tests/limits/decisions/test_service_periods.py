"""The periodic work of the decision service, in virtual time: how often it happens, and that errors do not end it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.limits.decision_services import ADA, DIRECTORY
from wharf.limits.config import LimiterSettings
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.limiter import Grant
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest
from wharf.limits.decisions.alerts import Alert, AlertQueue
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores import MemoryStore
from wharf.limits.stores.port import StoreUnavailable
from wharf.world import SimulatedWorld

RULES = read_rules('[[rule]]\nname = "core"\nceiling = 10\n')


class RenewingStore(MemoryStore):
    """A store in memory that records when slots are renewed. It can be unavailable."""

    def __init__(self, world: SimulatedWorld) -> None:
        super().__init__(world, RULES)
        self.world = world
        self.is_available = True
        self.renewed_s: list[float] = []

    @property
    def local_counters(self) -> Counters | None:
        return None

    async def renew(self, request_ids: Iterable[str]) -> int:
        self.renewed_s.append(round(self.world.monotonic_s(), 1))
        if not self.is_available:
            raise StoreUnavailable
        return await super().renew(request_ids)


def run(
    folder: Path,
    scenario: Callable[[DecisionService, RenewingStore], Awaitable[None]],
    *,
    is_time_virtual: bool = True,
) -> None:
    async def run_scenario() -> None:
        world = SimulatedWorld(1, asyncio.get_running_loop().time)
        store = RenewingStore(world)
        evaluator = LimitEvaluator(RULES, store, store.now_ms)
        service = DecisionService(
            evaluator, world, LimiterSettings(), directory=read_directory(DIRECTORY), folder=folder / "new"
        )
        service.open()
        await scenario(service, store)
        await service.close()

    if is_time_virtual:
        in_virtual_time(run_scenario)()
    else:
        asyncio.run(run_scenario())


async def admit(service: DecisionService) -> AdmittedRequest:
    admitted = await service.admit(IncomingRequest("GET", "/x", "", "192.0.2.7", authorization=f"Bearer {ADA}"))
    assert isinstance(admitted, AdmittedRequest)
    return admitted


def test_slots_of_running_requests_are_renewed_every_ten_seconds(tmp_path: Path) -> None:
    async def scenario(service: DecisionService, store: RenewingStore) -> None:
        admitted = await admit(service)
        await pass_time(35)
        assert store.renewed_s == [10.0, 20.0, 30.0]
        await service.end_request(admitted)
        await pass_time(10)
        assert len(store.renewed_s) == 3  # Nothing runs any more.

    run(tmp_path, scenario)


def test_an_outage_does_not_end_the_periodic_work(tmp_path: Path) -> None:
    async def scenario(service: DecisionService, store: RenewingStore) -> None:
        await admit(service)
        store.is_available = False
        await pass_time(15)
        store.is_available = True
        await pass_time(10)
        assert store.renewed_s == [10.0, 20.0]

    run(tmp_path, scenario)


def test_grants_end_within_a_second_and_are_written_to_the_audit_file(tmp_path: Path) -> None:
    async def scenario(service: DecisionService, _store: RenewingStore) -> None:
        until_ms = service.now_ms() + 2_000
        grant = Grant(owner="user:ada", resource="core", amount=5, until_ms=until_ms, by="eve", reason="a test")
        await service.overrides.add_grants([grant])
        limits = [decision.limit if (decision := (await admit(service)).decision) else None]
        await pass_time(3.5)
        limits.append(decision.limit if (decision := (await admit(service)).decision) else None)
        assert limits == [15, 10]
        audit = (tmp_path / "new" / "audit.jsonl").read_text()
        assert (audit.count("grant ended"), audit.count("user:ada")) == (1, 1)

    run(tmp_path, scenario)


def test_alerts_are_sent_within_a_second(tmp_path: Path) -> None:
    async def scenario(service: DecisionService, _store: RenewingStore) -> None:
        sent: list[Alert] = []

        async def send(alerts: list[Alert]) -> None:
            sent.extend(alerts)

        service.alerts, service.send_alerts = AlertQueue(), send
        for _ in range(10):
            await service.end_request(await admit(service))
        assert not sent
        await pass_time(1.5)
        assert sent
        count = len(sent)
        await pass_time(2)
        assert len(sent) == count

    run(tmp_path, scenario)


def test_closing_ends_requests_and_writes_the_decision_log(tmp_path: Path) -> None:
    async def scenario(service: DecisionService, store: RenewingStore) -> None:
        for _ in range(3):
            await admit(service)
        refused = [await admit_or_refuse(service) for _ in range(9)]
        slots = store.counters.tables["concurrent"]
        assert slots.count_used("user:ada", store.now_ms()) == 10
        await service.close()
        assert (slots.count_used("user:ada", store.now_ms()), service.running_requests) == (0, {})
        logged = b"".join(path.read_bytes() for path in (tmp_path / "new").glob("decisions*"))
        assert logged.count(b"\n") >= refused.count(False) == 2

    run(tmp_path, scenario, is_time_virtual=False)  # The log is written in a thread.


async def admit_or_refuse(service: DecisionService) -> bool:
    """Return whether a request is admitted."""
    incoming = IncomingRequest("GET", "/x", "", "192.0.2.7", authorization=f"Bearer {ADA}")
    return isinstance(await service.admit(incoming), AdmittedRequest)
