"""Rendering of templates while their data changes."""

import asyncio
import os
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

VARIABLE_AND_TIME = '{{ with nomadVar "a" }}{{ .v }}{{ end }} at {{ timestamp "unix" }}'


class PausedWorld(RealWorld):
    """A world whose wall clock blocks its callers until `may_reply` is set, to make a rendering last."""

    def __init__(self) -> None:
        super().__init__()
        self.may_reply = threading.Event()
        self.may_reply.set()
        self.call_count = 0

    def now_ns(self) -> int:
        self.call_count += 1
        self.may_reply.wait(60)
        return 7_000_000_000


class FakeServers:
    """Servers with one variable, which reply once `may_reply` is set."""

    def __init__(self) -> None:
        self.call_count = 0
        self.may_reply = asyncio.Event()

    async def send(self, request: ClientRequest) -> ClientReply:
        self.call_count += 1
        if "index" in dict(request.query):
            await asyncio.Event().wait()  # The data never changes.
        await self.may_reply.wait()
        variable = b'{"Namespace":"default","Path":"a","CreateIndex":3,"ModifyIndex":3,"Items":{"v":"value"}}'
        return ClientReply(
            200, {"x-cluster-index": "3"}, variable if request.path == "/v1/var/a" else b"[%s]" % variable
        )

    async def open(self, request: ClientRequest) -> StreamedReply:
        raise AssertionError(f"{request.path} is no stream")

    async def close(self) -> None:
        pass


def build_context(folder: Path, template: str) -> TaskContext:
    (folder / "local").mkdir()
    task = Task(name="t", driver="raw_exec", templates=(Template(embedded_tmpl=template, dest_path="local/rendered"),))
    return TaskContext("a1", "default", "global", task, TaskFolders(folder, folder), View.HOST, {}, ReferenceValues({}))


def test_data_that_arrive_during_a_rendering_are_not_missing_in_it(tmp_path: Path) -> None:
    context = build_context(tmp_path, VARIABLE_AND_TIME)

    async def scenario() -> None:
        world, servers = PausedWorld(), FakeServers()
        client = AsyncClient(world, [servers], retry_policy=NO_RETRIES)
        cluster = ClusterQueries(world, client, "default", lambda: None)
        templates = TaskTemplates(world, context, lambda _on_change: cluster)
        canceled = world.start_task(templates.render_initial(lambda *_, **__: None), name="a first try")
        await wait_on_loop_until(lambda: servers.call_count, what="the variable is requested")
        canceled.cancel()
        world.may_reply.clear()
        before = world.call_count
        rendering = world.start_task(templates.render_initial(lambda *_, **__: None), name="a second try")
        await wait_on_loop_until(lambda: world.call_count > before, what="the template is rendered without the reply")
        servers.may_reply.set()
        await wait_on_loop_until(lambda: cluster.find_result("variable", "a"), what="the reply has arrived")
        world.may_reply.set()
        await rendering
        await templates.close()

    asyncio.run(scenario())

    assert "value at 7" == (tmp_path / "local" / "rendered").read_text()


def create_templates(context: TaskContext, world: RealWorld) -> TaskTemplates:
    client = AsyncClient(world, [FakeServers()], retry_policy=NO_RETRIES)
    return TaskTemplates(world, context, lambda on_change: ClusterQueries(world, client, "default", on_change))


def test_a_template_is_rendered_when_a_missing_file_appears(tmp_path: Path) -> None:
    context = build_context(tmp_path, '{{ file "local/late" }} {{ timestamp "unix" }}')

    async def scenario() -> None:
        world = PausedWorld()
        templates = create_templates(context, world)
        waiting = world.start_task(templates.render_initial(lambda *_, **__: None), name="its templates")
        await wait_on_loop_until(lambda: world.call_count, what="the template is rendered without the file")
        (tmp_path / "local" / "late").write_text("here")
        await waiting
        await templates.close()

    asyncio.run(scenario())

    assert "here 7" == (tmp_path / "local" / "rendered").read_text()


def test_a_forbidden_file_fails_the_template_with_line_and_column(tmp_path: Path) -> None:
    context = build_context(tmp_path, 'one\n{{ file "../../etc/passwd" }}')

    async def scenario() -> None:
        world = RealWorld()
        templates = create_templates(context, world)
        with pytest.raises(TaskSetupError, match="line 2, column 4: Path escapes the alloc directory"):
            await templates.render_initial(lambda *_, **__: None)
        await templates.close()

    asyncio.run(scenario())


def test_a_pipe_in_place_of_a_rendered_file_is_replaced_without_waiting(tmp_path: Path) -> None:
    context = build_context(tmp_path, "text")
    os.mkfifo(tmp_path / "local" / "rendered")

    async def scenario() -> None:
        templates = create_templates(context, RealWorld())
        await templates.render_initial(lambda *_, **__: None)
        await templates.close()

    asyncio.run(scenario())

    assert "text" == (tmp_path / "local" / "rendered").read_text()
