"""Tasks as containers of a real engine: they run, survive restarts of the agent and the engine, and their end is reported."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.node.docker.podman import Podman, Registry, running_podman
from tests.waiting import wait_on_loop_until
from wharf.contract.model.jobs.groups import LogConfig
from wharf.node.core.outcome import Outcome
from wharf.node.drivers.docker.config import DockerSettings
from wharf.node.drivers.docker.container_watcher import CONTAINER_GONE_MESSAGE, build_outcome
from wharf.node.drivers.docker.driver import DockerDriver
from wharf.node.drivers.docker.responses import ContainerInfo, ContainerState
from wharf.node.drivers.port import CannotStart, CommandOrder, Given, Stream, TaskNetwork, TaskOrder
from wharf.node.networks import namespaces
from wharf.node.node_mark import NodeMark
from wharf.world import RealWorld

pytestmark = [pytest.mark.needs_program("podman"), pytest.mark.needs("containers")]
WITHIN_S = 120
STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Podman, Registry]]:
    with running_podman() as podman_and_registry:
        yield podman_and_registry


@pytest.fixture
def podman(running: tuple[Podman, Registry]) -> Podman:
    return running[0]


@pytest.fixture
def registry(running: tuple[Podman, Registry]) -> Iterator[Registry]:
    registry = running[1]
    yield registry
    registry.can_respond.set()


def run(test: Coroutine[Any, Any, None]) -> None:
    async def run_with_timeout() -> None:
        async with asyncio.timeout(WITHIN_S):
            await test

    asyncio.run(run_with_timeout())


class RecordingWatcher:
    """Records the events of a driver. `tracked_runs`: the runs that the agent tracks."""

    def __init__(self) -> None:
        self.begun_runs: list[str] = []
        self.ended: dict[str, Outcome] = {}
        self.messages: list[str] = []
        self.tracked_runs: set[str] = set()

    def on_begun(self, run: str) -> None:
        self.begun_runs.append(run)

    def on_refused(self, run: str, why: str) -> None:
        raise AssertionError(f"{run} is refused: {why}")

    def on_ended(self, run: str, outcome: Outcome) -> None:
        self.ended[run] = outcome

    def on_said(self, _run: str, message: str) -> None:
        self.messages.append(message)


class Machine:
    """The folders and the engine of a node whose driver can be stopped and started again."""

    def __init__(self, podman: Podman, registry: Registry, folder: Path, node: str) -> None:
        self.podman = podman
        self.image = f"{registry.address}/box:1"
        self.folder = folder
        self.node = node
        self.watcher = RecordingWatcher()

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[DockerDriver]:
        docker = DockerDriver(
            RealWorld(),
            self.watcher,
            socket=self.podman.socket,
            settings=DockerSettings(),
            owner=NodeMark(self.node),
            folder=self.folder / "progress",
            is_current_run=lambda run: run in self.watcher.tracked_runs,
        )
        try:
            yield docker
        finally:
            await docker.close()

    def order(self, run: str, script: str, **options: object) -> TaskOrder:
        allocation = run.rsplit(".", 2)[0]
        shared, task = self.folder / allocation / "alloc", self.folder / allocation / "t"
        for folder in (shared / "logs", task / "local", task / "secrets"):
            folder.mkdir(parents=True, exist_ok=True)
        config = {"image": self.image, "command": "sh", "args": ["-c", script], "network_mode": "none"}
        return TaskOrder(
            run=run,
            task="t",
            config={**config, **options},
            environment={"GREETING": "hello"},
            task_folder=task,
            log_folder=shared / "logs",
            log=LogConfig(max_files=3, max_file_size_mb=1),
            allocation_id=allocation,
            shared_folder=shared,
            given=Given(cpu_mhz=100, memory_mb=64),
        )

    def output(self, run: str, stream: str = "stdout") -> str:
        folder = self.folder / run.rsplit(".", 2)[0] / "alloc" / "logs"
        files = sorted(folder.glob(f"t.{stream}.*"), key=lambda path: int(path.suffix[1:]))
        return "".join(path.read_text() for path in files)

    async def until(self, condition: Callable[[], bool]) -> None:
        await wait_on_loop_until(condition, what="the driver's work", within_s=WITHIN_S)

    @staticmethod
    async def until_healthy(docker: DockerDriver) -> None:
        """Probe until the engine answers; a busy engine may exceed the time limit of one probe."""
        while not (await docker.probe()).is_healthy:
            pass

    async def ended(self, run: str) -> Outcome:
        await self.until(lambda: run in self.watcher.ended)
        return self.watcher.ended[run]


@pytest.fixture
def machine(podman: Podman, registry: Registry, tmp_path: Path) -> Machine:
    return Machine(podman, registry, tmp_path, node=tmp_path.name)


def test_a_task_has_its_folders_and_returns_its_exit_code_and_output(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            script = "echo $GREETING; echo oops >&2; echo made >/local/made; cat /alloc/shared; exit 7"
            order = machine.order("a1.0.1", script)
            (order.shared_folder / "shared").write_text("from outside\n")
            await docker.start(order)
            assert Outcome(7) == await machine.ended("a1.0.1")
            docker.forget("a1.0.1")
        assert ["a1.0.1"] == machine.watcher.begun_runs
        assert "hello\nfrom outside\n" == machine.output("a1.0.1")
        assert "oops\n" == machine.output("a1.0.1", "stderr")
        assert "made\n" == (order.task_folder / "local" / "made").read_text()

    run(test())


def test_a_task_survives_restarts_of_the_driver_and_its_output_is_written_once(machine: Machine) -> None:
    async def test() -> None:
        script = "i=0; while [ $i -lt 300 ]; do echo line $i; i=$((i+1)); sleep 0.01; done; exit 3"
        async with machine.driver() as docker:
            await docker.start(machine.order("a2.0.1", script))
            await machine.until(lambda: "line 20\n" in machine.output("a2.0.1"))
        for number in (100, 200):
            async with machine.driver() as docker:
                await docker.recover(["a2.0.1"])
                await machine.until(lambda number=number: f"line {number}\n" in machine.output("a2.0.1"))  # type: ignore[misc]  # the loop variable is bound as a default
        async with machine.driver() as docker:
            await docker.recover(["a2.0.1"])
            assert Outcome(3) == await machine.ended("a2.0.1")
            docker.forget("a2.0.1")
        assert "".join(f"line {number}\n" for number in range(300)) == machine.output("a2.0.1")

    run(test())


def test_output_after_the_stored_progress_is_not_written_twice(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("a3.0.1", "echo one; echo two; echo three; sleep 60"))
            await machine.until(lambda: "three\n" in machine.output("a3.0.1"))
            progress = json.loads((machine.folder / "progress" / "a3.0.1").read_text())
        # The stored progress is behind the files, as after a kill between the two writes.
        assert [0, len("one\ntwo\n")] == progress["spots"]["stdout"]
        async with machine.driver() as docker:
            await docker.recover(["a3.0.1"])
            docker.kill("a3.0.1")
            assert 137 == (await machine.ended("a3.0.1")).exit_code
            docker.forget("a3.0.1")
        assert "one\ntwo\nthree\n" == machine.output("a3.0.1")

    run(test())


def test_a_repeated_start_finds_the_existing_container(machine: Machine) -> None:
    async def test() -> None:
        order = machine.order("a4.0.1", "echo begun; sleep 60")
        async with machine.driver() as docker:
            await docker.start(order)
        async with machine.driver() as docker:
            machine.watcher.tracked_runs.add(
                "a4.0.1"
            )  # As in the journal of an agent that was killed during the start.
            await docker.recover([])
            await docker.start(order)
            assert ["a4.0.1", "a4.0.1"] == machine.watcher.begun_runs
            await machine.until(
                lambda: machine.output("a4.0.1") != ""
            )  # The program may begin later than its container.
            docker.signal("a4.0.1", "SIGKILL")
            await machine.ended("a4.0.1")
            docker.forget("a4.0.1")
        assert "begun\n" == machine.output("a4.0.1")

    run(test())


def test_a_container_of_an_unknown_run_is_removed(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("a5.0.1", "sleep 60"))
        async with machine.driver() as docker:
            await docker.recover([])
            await wait_until_removed(docker, "a5.0.1")

    run(test())


def test_a_container_that_an_operator_removed_has_an_unknown_outcome(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("a6.0.1", "sleep 60"))
            for found in await docker._engine.list_containers("wharf.run=a6.0.1"):  # As an operator would.
                await docker._engine.remove_container(found.id)
            outcome = await machine.ended("a6.0.1")
            assert (False, CONTAINER_GONE_MESSAGE) == (outcome.is_known, outcome.message)

    run(test())


def test_tasks_survive_a_restart_of_the_engine(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("a7.0.1", "echo before; sleep 2; echo after; exit 9"))
            await machine.until(lambda: "before\n" in machine.output("a7.0.1"))
            machine.podman.kill()
            assert not (await docker.probe()).is_healthy
            machine.podman.start()
            await machine.until_healthy(docker)
            assert 9 == (await machine.ended("a7.0.1")).exit_code
            docker.forget("a7.0.1")
        assert "before\nafter\n" == machine.output("a7.0.1")

    run(test())


def test_the_error_for_a_missing_image_names_the_image(machine: Machine, registry: Registry) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            order = machine.order("a8.0.1", "true", image=f"{registry.address}/missing:1")
            with pytest.raises(CannotStart, match=f"image {registry.address}/missing:1 cannot be pulled"):
                await docker.start(order)

    run(test())


def test_the_error_for_an_unknown_port_names_the_port(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            with pytest.raises(CannotStart, match="ports: the group has no port web; it has none"):
                await docker.start(machine.order("a8.0.2", "true", ports=["web"]))

    run(test())


def test_an_image_is_pulled_with_the_credentials_of_the_job(machine: Machine, registry: Registry) -> None:
    async def test() -> None:
        registry.required_authorization = f"Basic {base64.b64encode(b'me:secret').decode()}"
        image = f"{registry.address}/guarded:1"
        async with machine.driver() as docker:
            with pytest.raises(CannotStart, match="guarded:1 cannot be pulled"):
                await docker.start(machine.order("c1.0.1", "true", image=image))
            auth = [{"username": "me", "password": "secret", "server_address": registry.address}]
            await docker.start(machine.order("c1.0.2", "exit 4", image=image, auth=auth))
            assert Outcome(4) == await machine.ended("c1.0.2")
            docker.forget("c1.0.2")

    try:
        run(test())
    finally:
        registry.required_authorization = ""


def test_a_pull_is_interrupted_if_the_engine_ends(machine: Machine, registry: Registry) -> None:
    async def test() -> None:
        registry.can_respond.clear()
        image = f"{registry.address}/cut:1"
        async with machine.driver() as docker:
            order = machine.order("c2.0.1", "exit 8", image=image, force_pull=True)
            start_task = asyncio.ensure_future(docker.start(order))
            await machine.until(lambda: any("/cut/" in path for path in registry.requested_paths))
            machine.podman.kill()
            machine.podman.start()
            registry.can_respond.set()
            with pytest.raises(CannotStart, match=f"the pull of {image} was interrupted"):
                await start_task
            # The next attempt, as by a restart policy.
            await docker.start(msgspec.structs.replace(order, run="c2.0.2"))
            assert Outcome(8) == await machine.ended("c2.0.2")
            docker.forget("c2.0.2")

    run(test())


def test_a_canceled_start_ends_its_pull(machine: Machine, registry: Registry) -> None:
    async def test() -> None:
        registry.can_respond.clear()
        async with machine.driver() as docker:
            order = machine.order("a9.0.1", "true", image=f"{registry.address}/slow:1", force_pull=True)
            start_task = asyncio.ensure_future(docker.start(order))
            await machine.until(lambda: bool(machine.watcher.messages))
            docker.give_up("a9.0.1")
            with pytest.raises(CannotStart, match="before it had begun"):
                await start_task
            registry.can_respond.set()
        assert [f"Downloading image {registry.address}/slow:1"] == machine.watcher.messages

    run(test())


def test_a_second_run_of_a_task_replaces_the_container_of_the_first(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("b1.0.1", "exit 1"))
            await machine.ended("b1.0.1")
            await docker.start(machine.order("b1.0.2", "exit 2"))  # The container of the first run still exists.
            assert Outcome(2) == await machine.ended("b1.0.2")
            docker.forget("b1.0.1")
            docker.forget("b1.0.2")
            await wait_until_removed(docker, "b1.0.2")

    run(test())


def test_a_command_runs_in_the_container_of_a_task(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("b3.0.1", "sleep 60"))
            words = ("sh", "-c", "cat; echo $GREETING; echo oops >&2; exit 6")
            order = CommandOrder(run="b3.0.1", name="c1", command=words, environment={}, folder="/")
            command = await docker.run_beside(order)
            await command.write(b"heard\n")
            await command.close_input()
            output = dict.fromkeys(("stdout", "stderr"), b"")
            for stream in STREAMS:
                while chunk := await command.read(stream):
                    output[stream] += chunk
            assert {"stdout": b"heard\nhello\n", "stderr": b"oops\n"} == output
            assert 6 == await command.wait()
            await command.end()
            docker.kill("b3.0.1")
            await machine.ended("b3.0.1")
            docker.forget("b3.0.1")

    run(test())


def test_the_processes_of_a_running_container_are_listed(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("a19.0.1", "sleep 60 & exec sleep 61"))

            def names() -> list[str]:
                try:
                    return sorted(
                        Path(f"/proc/{pid}/comm").read_text().strip() for pid in docker.processes_of("a19.0.1")
                    )
                except OSError:  # A process has just ended.
                    return []

            await machine.until(lambda: ["sleep", "sleep"] == names())
            docker.kill("a19.0.1")
            await machine.ended("a19.0.1")
            assert [] == names()

    run(test())


def test_a_task_above_its_memory_limit_is_killed(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("b4.0.1", "exec tail -n 1 /dev/zero"))
            assert 137 == (await machine.ended("b4.0.1")).exit_code
            docker.forget("b4.0.1")

    run(test())


def test_lack_of_memory_is_part_of_the_outcome() -> None:
    # Not tested with Podman, which does not report it under control groups of version 1.
    state = ContainerState(status="exited", exit_code=137, oom_killed=True)
    assert Outcome(137, is_out_of_memory=True) == build_outcome(ContainerInfo(id="c1", state=state))


def test_long_output_is_rotated_by_size(machine: Machine) -> None:
    async def test() -> None:
        async with machine.driver() as docker:
            await docker.start(machine.order("b2.0.1", "dd if=/dev/zero bs=1000 count=2500"))
            assert Outcome(0) == await machine.ended("b2.0.1")
            docker.forget("b2.0.1")
        sizes = [path.stat().st_size for path in sorted((machine.folder / "b2/alloc/logs").glob("t.stdout.*"))]
        assert [1_000_000, 1_000_000, 500_000] == sizes

    run(test())


def test_a_container_joins_the_network_of_its_allocation(machine: Machine) -> None:
    folder = machine.folder / "b5" / "network"
    folder.mkdir(parents=True)
    file, hosts = folder / "namespace", folder / "hosts"
    hosts.write_text("192.0.2.7 of-the-allocation\n")
    namespaces.create_namespace(file)

    async def test() -> None:
        async with machine.driver() as docker:
            await machine.until_healthy(docker)
            order = machine.order(
                "b5.0.1", "ls -iL /proc/self/ns/net; cat /etc/hosts /proc/sys/kernel/hostname", network_mode="host"
            )
            network = TaskNetwork(str(file), "named", ((str(hosts), "/etc/hosts"),))
            await docker.start(msgspec.structs.replace(order, network=network))
            assert Outcome(0) == await machine.ended("b5.0.1")
            docker.forget("b5.0.1")
            lines = machine.output("b5.0.1").splitlines()
            assert [str(os.stat(file).st_ino), "192.0.2.7 of-the-allocation", "named"] == [
                lines[0].split()[0],
                *lines[1:],
            ]

    try:
        run(test())
    finally:
        namespaces.release_namespace(file)


async def wait_until_removed(docker: DockerDriver, run: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while await docker._engine.list_containers(f"wharf.run={run}"):
            pass
