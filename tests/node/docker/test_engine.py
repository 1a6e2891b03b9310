"""What is asked of a real container engine, and what it answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.docker.podman import Podman, Registry, running_podman
from wharf.node.drivers.docker import ContainerEngine, EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.engine import RegistryAuth
from wharf.node.drivers.docker.images import ImagePuller
from wharf.node.drivers.docker.output_stream import OutputChunk
from wharf.world import RealWorld

pytestmark = [pytest.mark.needs_program("podman"), pytest.mark.needs("containers")]
WITHIN_S = 60


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Podman, Registry]]:
    with running_podman() as both:
        yield both


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WITHIN_S):
            await work

    asyncio.run(bounded())


@contextlib.asynccontextmanager
async def container(engine: ContainerEngine, registry: Registry, *command: str, **more: object) -> AsyncIterator[str]:
    """A container that is made and not started."""
    image = f"{registry.address}/box:1"
    if await engine.find_image(image) is None:
        await engine.pull_image(image, auth=None, on_progress=lambda _: None)
    body = {
        "Image": image,
        "Cmd": list(command),
        "Labels": {"wharf.alloc_id": "a1"},
        "HostConfig": {"NetworkMode": "none"},
    }
    made = await engine.create_container("", {**body, **more})
    try:
        yield made.id
    finally:
        await engine.remove_container(made.id)


async def all_of(chunks: AsyncIterator[OutputChunk]) -> dict[str, bytes]:
    said = {"stdout": b"", "stderr": b""}
    async for chunk in chunks:
        said[chunk.stream] += chunk.data
    return said


def test_an_engine_says_what_it_is(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            assert (await engine.read_version()).api_version
            assert "linux" == (await engine.read_info()).os_type

    run(work())


def test_a_task_runs_and_its_exit_code_and_output_come_back(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            async with container(engine, running[1], "sh", "-c", "echo out; echo err >&2; exit 7") as id:
                await engine.start_container(id)
                ended = await engine.wait_for_exit(id)
                said = await all_of(engine.stream_logs(id, is_tty=False, follow=False))

                assert (7, "") == ended
                assert {"stdout": b"out\n", "stderr": b"err\n"} == said
            assert await engine.find_container(id) is None

    run(work())


def test_a_task_that_is_killed_tells_the_signal_in_its_code(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)
            await engine.start_container(id)
            found = await engine.find_container(id)
            assert found is not None
            assert found.state.running
            assert found.state.pid > 0

            await engine.signal_container(id, "SIGKILL")

            assert 137 == (await engine.wait_for_exit(id)).code

    run(work())


def test_logs_are_followed_while_the_task_writes(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with (
            ContainerEngine(running[0].socket) as engine,
            container(engine, running[1], "sh", "-c", "echo 1; sleep 0.3; echo 2") as id,
        ):
            await engine.start_container(id)

            assert b"1\n2\n" == (await all_of(engine.stream_logs(id, is_tty=False, follow=True)))["stdout"]

    run(work())


def test_containers_are_found_by_their_label(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with (
            ContainerEngine(running[0].socket) as engine,
            container(engine, running[1], "true", Labels={"mark": "x"}) as id,
        ):
            assert [id] == [found.id for found in await engine.list_containers("mark=x")]
            assert [] == await engine.list_containers("mark=y")

    run(work())


def test_a_command_runs_inside_a_task_with_input_and_output(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)
            exec_id = await engine.create_exec(id, ["sh", "-c", "cat; echo done >&2; exit 3"], is_tty=False)
            attached = await engine.start_exec(exec_id, is_tty=False)
            await attached.write(b"hello\n")
            attached.close_input()
            said = await all_of(attached.read_output())
            await attached.close()

            assert {"stdout": b"hello\n", "stderr": b"done\n"} == said
            assert 3 == (await engine.read_exec_state(exec_id)).exit_code

    run(work())


def test_figures_of_a_task_are_told(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)

            assert (await engine.read_stats(id)).memory_stats.limit > 0

    run(work())


def test_what_is_not_there_is_told_so(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            assert await engine.find_container("nobody") is None
            assert await engine.find_image("nobody:1") is None
            await engine.remove_container("nobody")
            with pytest.raises(EngineNotFound, match="nobody"):
                await engine.start_container("nobody")
            with pytest.raises(EngineRejected):
                await engine.create_container("x", {"Image": "nobody:1"})

    run(work())


def test_an_engine_that_is_away_is_told_with_its_socket(tmp_path: Path) -> None:
    async def work() -> None:
        async with ContainerEngine(tmp_path / "none") as engine:
            with pytest.raises(EngineUnreachable, match=f"the container engine at {tmp_path}/none does not answer"):
                await engine.read_version()
            with pytest.raises(EngineUnreachable):
                await engine.start_exec("x", is_tty=False)

    run(work())


def test_many_who_want_an_image_wait_for_one_pull(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        registry = running[1]
        async with ContainerEngine(running[0].socket) as engine:
            name = f"{registry.address}/many:1"
            await engine.remove_image(f"{registry.address}/box:1")
            before, told = registry.layers_fetched, list[str]()
            pulls = ImagePuller(engine, RealWorld())
            images = await asyncio.gather(
                *(pulls.ensure_image(name, on_pull_started=lambda: told.append("begun")) for _ in range(5))
            )

            assert 1 == len({image.id for image in images})
            assert 1 == registry.layers_fetched - before
            assert ["begun"] * 5 == told
            assert "" == pulls.format_progress(name)
            await pulls.ensure_image(name, on_pull_started=lambda: pytest.fail("it is here"))

    run(work())


def test_a_pull_that_takes_too_long_is_told_and_given_up(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        registry = running[1]
        async with ContainerEngine(running[0].socket) as engine:
            for image in ("many:1", "box:1"):
                await engine.remove_image(f"{registry.address}/{image}")
            registry.may_answer.clear()
            pulls = ImagePuller(engine, RealWorld())
            with pytest.raises(TimeoutError, match="slow:1 is not pulled after 0 s"):
                await pulls.ensure_image(f"{registry.address}/slow:1", timeout_s=0.3)
            registry.may_answer.set()

            assert "" == pulls.format_progress(f"{registry.address}/slow:1")

    run(work())


def test_an_image_that_no_registry_has_is_refused_in_the_engines_words(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            with pytest.raises(EngineRejected, match="missing/box"):
                await ImagePuller(engine, RealWorld()).ensure_image(f"{running[1].address}/missing/box:1")

    run(work())


def test_a_registry_that_asks_who_one_is_is_told(running: tuple[Podman, Registry]) -> None:
    async def work() -> None:
        registry = running[1]
        registry.wanted_authorization = "Basic bWU6c2VjcmV0"  # me:secret
        try:
            async with ContainerEngine(running[0].socket) as engine:
                pulls, name = ImagePuller(engine, RealWorld()), f"{registry.address}/private:1"
                with pytest.raises(EngineRejected):
                    await pulls.ensure_image(name)
                found = await pulls.ensure_image(
                    name, auth=RegistryAuth("me", "secret", server_address=registry.address)
                )

                assert found.id
        finally:
            registry.wanted_authorization = ""

    run(work())
