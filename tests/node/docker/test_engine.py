"""Requests to a real container engine and its responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.node.docker.podman import Podman, Registry, running_podman
from wharf.node.drivers.docker import ContainerEngine, EngineNotFound, EngineRejected, EngineUnreachable
from wharf.node.drivers.docker.engine import RegistryAuth
from wharf.node.drivers.docker.images import ImagePuller
from wharf.node.drivers.docker.output_stream import ContainerOutput
from wharf.node.drivers.docker.responses import ContainerState
from wharf.world import RealWorld

pytestmark = [pytest.mark.needs_program("podman"), pytest.mark.needs("containers")]
WITHIN_S = 60


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Podman, Registry]]:
    with running_podman() as podman_and_registry:
        yield podman_and_registry


def run(test: Coroutine[Any, Any, None]) -> None:
    async def run_with_timeout() -> None:
        async with asyncio.timeout(WITHIN_S):
            await test

    asyncio.run(run_with_timeout())


@contextlib.asynccontextmanager
async def container(
    engine: ContainerEngine, registry: Registry, *command: str, **options: object
) -> AsyncIterator[str]:
    """Create a container without starting it; it is removed at the end."""
    image = f"{registry.address}/box:1"
    if await engine.find_image(image) is None:
        await engine.pull_image(image, auth=None, on_progress=lambda _: None)
    body = {
        "Image": image,
        "Cmd": list(command),
        "Labels": {"wharf.alloc_id": "a1"},
        "HostConfig": {"NetworkMode": "none"},
    }
    created = await engine.create_container("", {**body, **options})
    try:
        yield created.id
    finally:
        await engine.remove_container(created.id)


async def flatten(pieces: AsyncIterator[Sequence[ContainerOutput]]) -> AsyncIterator[ContainerOutput]:
    async for piece in pieces:
        for chunk in piece:
            yield chunk


async def read_all(chunks: AsyncIterator[ContainerOutput]) -> dict[str, bytes]:
    output = {"stdout": b"", "stderr": b""}
    async for chunk in chunks:
        output[chunk.stream] += chunk.data
    return output


def test_an_engine_reports_its_version_and_operating_system(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            assert (await engine.read_version()).api_version
            assert "linux" == (await engine.read_info()).os_type

    run(test())


async def wait_for_end(engine: ContainerEngine, id: str) -> ContainerState:
    """Return the state of the container after an event, as the driver does."""
    async with asyncio.timeout(60), engine.open_events() as events:
        while (found := await engine.find_container(id)) is not None and found.state.running:
            assert (await anext(events)).actor.id
    assert found is not None
    return found.state


def test_a_container_returns_its_exit_code_and_output(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            async with container(engine, running[1], "sh", "-c", "echo out; echo err >&2; exit 7") as id:
                await engine.start_container(id)
                state = await wait_for_end(engine, id)
                output = await read_all(flatten(engine.stream_logs(id, is_tty=False, follow=False)))

                assert (7, "") == (state.exit_code, state.error)
                assert {"stdout": b"out\n", "stderr": b"err\n"} == output
            assert await engine.find_container(id) is None

    run(test())


def test_the_exit_code_of_a_killed_container_contains_the_signal(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)
            await engine.start_container(id)
            found = await engine.find_container(id)
            assert found is not None
            assert found.state.running
            assert found.state.pid > 0

            await engine.signal_container(id, "SIGKILL")

            assert 137 == (await wait_for_end(engine, id)).exit_code

    run(test())


def test_logs_are_followed_while_the_container_writes(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with (
            ContainerEngine(running[0].socket) as engine,
            container(engine, running[1], "sh", "-c", "echo 1; sleep 0.3; echo 2") as id,
        ):
            await engine.start_container(id)

            assert b"1\n2\n" == (await read_all(flatten(engine.stream_logs(id, is_tty=False, follow=True))))["stdout"]

    run(test())


def test_containers_are_listed_by_label(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with (
            ContainerEngine(running[0].socket) as engine,
            container(engine, running[1], "true", Labels={"mark": "x"}) as id,
        ):
            assert [id] == [found.id for found in await engine.list_containers("mark=x")]
            assert [] == await engine.list_containers("mark=y")

    run(test())


def test_a_command_in_a_container_has_input_and_output(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)
            exec_id = await engine.create_exec(id, ["sh", "-c", "cat; echo done >&2; exit 3"], is_tty=False)
            connection = await engine.start_exec(exec_id, is_tty=False)
            await connection.write(b"hello\n")
            connection.close_input()
            output = await read_all(connection.read_output())
            await connection.close()

            assert {"stdout": b"hello\n", "stderr": b"done\n"} == output
            assert 3 == (await engine.read_exec_state(exec_id)).exit_code

    run(test())


def test_statistics_of_a_container_are_read(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine, container(engine, running[1], "sleep", "100") as id:
            await engine.start_container(id)

            assert (await engine.read_stats(id)).memory_stats.limit > 0

    run(test())


def test_missing_containers_and_images_are_reported(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            assert await engine.find_container("missing") is None
            assert await engine.find_image("missing:1") is None
            await engine.remove_container("missing")
            with pytest.raises(EngineNotFound, match="missing"):
                await engine.start_container("missing")
            with pytest.raises(EngineRejected):
                await engine.create_container("x", {"Image": "missing:1"})

    run(test())


def test_an_unreachable_engine_is_reported_with_its_socket(tmp_path: Path) -> None:
    async def test() -> None:
        async with ContainerEngine(tmp_path / "none") as engine:
            with pytest.raises(EngineUnreachable, match=f"the container engine at {tmp_path}/none does not answer"):
                await engine.read_version()
            with pytest.raises(EngineUnreachable):
                await engine.start_exec("x", is_tty=False)

    run(test())


def test_concurrent_requests_for_an_image_share_one_pull(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        registry = running[1]
        async with ContainerEngine(running[0].socket) as engine:
            name = f"{registry.address}/many:1"
            await engine.remove_image(f"{registry.address}/box:1")
            fetched_before, messages = registry.layers_fetched, list[str]()
            pulls = ImagePuller(engine, RealWorld())
            images = await asyncio.gather(
                *(pulls.ensure_image(name, on_pull_started=lambda: messages.append("started")) for _ in range(5))
            )

            assert 1 == len({image.id for image in images})
            assert 1 == registry.layers_fetched - fetched_before
            assert ["started"] * 5 == messages
            assert "" == pulls.format_progress(name)
            await pulls.ensure_image(name, on_pull_started=lambda: pytest.fail("the image exists"))

    run(test())


def test_a_pull_is_canceled_after_its_timeout(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        registry = running[1]
        async with ContainerEngine(running[0].socket) as engine:
            for image in ("many:1", "box:1"):
                await engine.remove_image(f"{registry.address}/{image}")
            registry.can_respond.clear()
            pulls = ImagePuller(engine, RealWorld())
            with pytest.raises(TimeoutError, match="slow:1 took longer than 0 s"):
                await pulls.ensure_image(f"{registry.address}/slow:1", timeout_s=0.3)
            registry.can_respond.set()

            assert "" == pulls.format_progress(f"{registry.address}/slow:1")

    run(test())


def test_the_error_for_an_unknown_image_comes_from_the_engine(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        async with ContainerEngine(running[0].socket) as engine:
            with pytest.raises(EngineRejected, match="missing/box"):
                await ImagePuller(engine, RealWorld()).ensure_image(f"{running[1].address}/missing/box:1")

    run(test())


def test_an_image_can_be_pulled_with_credentials(running: tuple[Podman, Registry]) -> None:
    async def test() -> None:
        registry = running[1]
        registry.required_authorization = "Basic bWU6c2VjcmV0"  # me:secret
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
            registry.required_authorization = ""

    run(test())
