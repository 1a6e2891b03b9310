"""Rendering of templates while their data arrive."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.waiting import wait_on_loop_until
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest
from wharf.contract.client.transport import StreamedReply
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.templates import Template
from wharf.node.drivers.port import View
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.node.tasks.templates.queries import ClusterQueries
from wharf.node.tasks.templates.rendering import TaskTemplates
from wharf.world import RealWorld

ASKS_AND_WAITS = '{{ with nomadVar "a" }}{{ .v }}{{ end }} at {{ timestamp "unix" }}'


class Held(RealWorld):
    """The time is told only when it may be: until then who asks for it waits, as in a long rendering."""

    def __init__(self) -> None:
        super().__init__()
        self.may_tell = threading.Event()
        self.may_tell.set()
        self.asked = 0

    def now_ns(self) -> int:
        self.asked += 1
        self.may_tell.wait(60)
        return 7_000_000_000


class Servers:
    """They have one variable, and tell of it when they may."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()

    async def send(self, request: ClientRequest) -> ClientReply:
        self.asked += 1
        if "index" in dict(request.query):
            await asyncio.Event().wait()  # Nothing changes.
        await self.may_answer.wait()
        variable = b'{"Namespace":"default","Path":"a","CreateIndex":3,"ModifyIndex":3,"Items":{"v":"kept"}}'
        return ClientReply(
            200, {"x-cluster-index": "3"}, variable if request.path == "/v1/var/a" else b"[%s]" % variable
        )

    async def open(self, request: ClientRequest) -> StreamedReply:
        raise AssertionError(f"{request.path} is no stream")

    async def close(self) -> None:
        pass


def a_work(folder: Path, template: str) -> TaskContext:
    (folder / "local").mkdir()
    task = Task(name="t", driver="raw_exec", templates=(Template(embedded_tmpl=template, dest_path="local/it"),))
    return TaskContext("a1", "default", "global", task, TaskFolders(folder, folder), View.HOST, {}, ReferenceValues({}))


def test_data_that_arrive_during_a_rendering_are_not_missing_in_it(tmp_path: Path) -> None:
    work = a_work(tmp_path, ASKS_AND_WAITS)

    async def story() -> None:
        world, servers = Held(), Servers()
        client = AsyncClient(world, [servers], retry_policy=NO_RETRIES)
        cluster = ClusterQueries(world, client, "default", lambda: None)
        templates = TaskTemplates(world, work, lambda _on_change: cluster)
        given_up = world.start_task(templates.render_initial(lambda *_, **__: None), name="a first try")
        await wait_on_loop_until(lambda: servers.asked, what="the variable is asked for")
        given_up.cancel()
        world.may_tell.clear()
        before = world.asked
        trying = world.start_task(templates.render_initial(lambda *_, **__: None), name="a second try")
        await wait_on_loop_until(lambda: world.asked > before, what="it is rendered without the answer")
        servers.may_answer.set()
        await wait_on_loop_until(lambda: cluster.find_result("variable", "a"), what="the answer is there")
        world.may_tell.set()
        await trying
        await templates.close()

    asyncio.run(story())

    assert "kept at 7" == (tmp_path / "local" / "it").read_text()


def templates_of(work: TaskContext, world: RealWorld) -> TaskTemplates:
    client = AsyncClient(world, [Servers()], retry_policy=NO_RETRIES)
    return TaskTemplates(world, work, lambda on_change: ClusterQueries(world, client, "default", on_change))


def test_a_template_is_rendered_when_a_missing_file_appears(tmp_path: Path) -> None:
    work = a_work(tmp_path, '{{ file "local/late" }} {{ timestamp "unix" }}')

    async def story() -> None:
        world = Held()
        templates = templates_of(work, world)
        waiting = world.start_task(templates.render_initial(lambda *_, **__: None), name="its templates")
        await wait_on_loop_until(lambda: world.asked, what="it is rendered without the file")
        (tmp_path / "local" / "late").write_text("here")
        await waiting
        await templates.close()

    asyncio.run(story())

    assert "here 7" == (tmp_path / "local" / "it").read_text()


def test_a_forbidden_file_fails_the_template_with_line_and_column(tmp_path: Path) -> None:
    work = a_work(tmp_path, 'one\n{{ file "../../etc/passwd" }}')

    async def story() -> None:
        world = RealWorld()
        templates = templates_of(work, world)
        with pytest.raises(TaskSetupError, match="line 2, column 4: Path escapes the alloc directory"):
            await templates.render_initial(lambda *_, **__: None)
        await templates.close()

    asyncio.run(story())
