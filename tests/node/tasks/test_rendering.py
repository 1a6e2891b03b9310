"""Rendering of templates while their data changes."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.waiting import wait_on_loop_until
from wharf.contract.client import NO_RETRIES, AsyncClient, ClientReply, ClientRequest
from wharf.contract.client.transport import StreamedReply
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.templates import Template
from wharf.node.drivers.port import View
from wharf.node.processes import has_arguments, list_pids, read_stat_fields
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.node.tasks.templates.budget import RenderBudget
from wharf.node.tasks.templates.messages import RenderOrder
from wharf.node.tasks.templates.queries import ClusterQueries
from wharf.node.tasks.templates.renderer import RenderOwner, TemplateRenderer
from wharf.node.tasks.templates.rendering import TaskTemplates
from wharf.world import RealWorld

VARIABLE_AND_TIME = '{{ with nomadVar "a" }}{{ .v }}{{ end }} at {{ timestamp "unix" }}'


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


def build_context(folder: Path, *templates: str | Template) -> TaskContext:
    (folder / "local").mkdir()
    task_templates = tuple(
        Template(embedded_tmpl=template, dest_path="local/rendered") if isinstance(template, str) else template
        for template in templates
    )
    task = Task(name="t", driver="raw_exec", templates=task_templates)
    return TaskContext("a1", "default", "global", task, TaskFolders(folder, folder), View.HOST, {}, ReferenceValues({}))


EMPTY_ORDER = RenderOrder((), "", "", "/", "/", "host", {}, {}, (), 0)


def create_templates(
    context: TaskContext,
    world: RealWorld,
    renderer: TemplateRenderer,
    *,
    cluster: ClusterQueries | None = None,
) -> TaskTemplates:
    client = AsyncClient(world, [FakeServers()], retry_policy=NO_RETRIES)
    return TaskTemplates(
        world, context, lambda on_change: cluster or ClusterQueries(world, client, "default", on_change), renderer
    )


def render(context: TaskContext, budget: RenderBudget | None = None) -> None:
    async def scenario() -> None:
        world = RealWorld()
        renderer = TemplateRenderer(world, budget)
        templates = create_templates(context, world, renderer)
        try:
            await templates.render_initial(lambda *_, **__: None)
        finally:
            await templates.close()
            await renderer.close()

    asyncio.run(scenario())


def test_data_that_arrive_during_a_rendering_are_not_missing_in_it(tmp_path: Path) -> None:
    context = build_context(tmp_path, VARIABLE_AND_TIME)

    async def scenario() -> None:
        world, servers = RealWorld(), FakeServers()
        renderer = TemplateRenderer(world)
        client = AsyncClient(world, [servers], retry_policy=NO_RETRIES)
        cluster = ClusterQueries(world, client, "default", lambda: None)
        templates = create_templates(context, world, renderer, cluster=cluster)
        canceled = world.start_task(templates.render_initial(lambda *_, **__: None), name="a first try")
        await wait_on_loop_until(lambda: servers.call_count, what="the variable is requested")
        canceled.cancel()
        async with renderer.render(RenderOwner("default", "a1"), EMPTY_ORDER):
            rendering = world.start_task(templates.render_initial(lambda *_, **__: None), name="a second try")
            await asyncio.sleep(0)
            servers.may_reply.set()
            await wait_on_loop_until(lambda: cluster.find_result("variable", "a"), what="the reply has arrived")
        await rendering
        await templates.close()
        await renderer.close()

    asyncio.run(scenario())

    assert (tmp_path / "local" / "rendered").read_text().startswith("value at ")


def test_a_template_is_rendered_when_a_missing_file_appears(tmp_path: Path) -> None:
    context = build_context(tmp_path, '{{ file "local/late" }} and more')

    async def scenario() -> None:
        world = RealWorld()
        renderer = TemplateRenderer(world)
        templates = create_templates(context, world, renderer)
        noticed: list[str] = []
        waiting = world.start_task(templates.render_initial(lambda _, text: noticed.append(text)), name="its templates")
        await wait_on_loop_until(lambda: noticed, what="the template is rendered without the file")
        (tmp_path / "local" / "late").write_text("here")
        await waiting
        await templates.close()
        await renderer.close()

    asyncio.run(scenario())

    assert "here and more" == (tmp_path / "local" / "rendered").read_text()


def test_a_forbidden_file_fails_the_template_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(TaskSetupError, match="line 2, column 4: Path escapes the alloc directory"):
        render(build_context(tmp_path, 'one\n{{ file "../../etc/passwd" }}'))


def test_templates_define_variables(tmp_path: Path) -> None:
    async def scenario() -> dict[str, str]:
        world = RealWorld()
        renderer = TemplateRenderer(world)
        template = Template(embedded_tmpl="A=1\nB='{{ 2 }}'", dest_path="local/rendered", envvars=True)
        templates = create_templates(build_context(tmp_path, template), world, renderer)
        await templates.render_initial(lambda *_, **__: None)
        await templates.close()
        await renderer.close()
        return templates.environment

    assert {"A": "1", "B": "2"} == asyncio.run(scenario())


def test_a_template_that_needs_too_much_cpu_time_fails_with_the_limit(tmp_path: Path) -> None:
    # Each step is costly, so that the limit of CPU time is reached long before the limit of steps on any machine.
    template = (
        '{{ $x := replaceAll "0" "000000000" (replaceAll "0" "000000000" (printf "%0500d" 1)) }}'
        + "{{ range loop 100000 }}"
        + "{{ $y := sha256Hex $x }}" * 4
        + "{{ end }}"
    )
    with pytest.raises(TaskSetupError, match="rendering takes more than 1 s of CPU time"):
        render(build_context(tmp_path, template), RenderBudget(cpu_s=1))


@pytest.mark.parametrize(
    "template",
    [
        '{{ $x := "' + "a" * 30_000 + '" }}{{ regexReplaceAll "a" "' + "b" * 7_000 + '" $x | len }}',
        '{{ $x := "%s" }}{{ range loop 22 }}{{ $x = print $x $x }}{{ end }}{{ len $x }}' % ("a" * 68),
    ],
)
def test_a_template_that_needs_too_much_memory_fails_with_the_limit(tmp_path: Path, template: str) -> None:
    with pytest.raises(TaskSetupError, match="rendering needs more than 128 MiB of memory"):
        render(build_context(tmp_path, template), RenderBudget(memory_bytes=128 << 20))


@pytest.mark.parametrize(
    "template",
    [
        '{{ $x := "%s" }}{{ replaceAll "a" $x $x | len }}' % ("a" * 45_000),
        '{{ loop 30000 | join "%s" }}' % ("a" * 9_000),
    ],
)
def test_a_function_refuses_a_result_that_is_too_long(tmp_path: Path, template: str) -> None:
    with pytest.raises(TaskSetupError, match=r"would produce .* characters; the limit is 67,108,864"):
        render(build_context(tmp_path, template))


def test_outputs_of_one_task_that_are_too_long_together_fail(tmp_path: Path) -> None:
    long_text = '{{ $x := "%s" }}{{ range loop 7 }}{{ $x = print $x $x }}{{ end }}{{ $x }}' % ("a" * 100_000)
    templates = [Template(embedded_tmpl=long_text, dest_path=f"local/{number}") for number in range(6)]
    with pytest.raises(TaskSetupError, match="more than 67,108,864 bytes of output"):
        render(build_context(tmp_path, *templates))


def test_a_canceled_rendering_ends_at_once_with_its_process(tmp_path: Path) -> None:
    endless = "{{ range loop 90000 }}{{ $y := sha256Hex $x }}{{ end }}"
    context = build_context(tmp_path, '{{ $x := "' + "a" * 1_000_000 + '" }}' + endless)

    async def scenario() -> tuple[float, list[int]]:
        world = RealWorld()
        renderer = TemplateRenderer(world)
        templates = create_templates(context, world, renderer)
        rendering = world.start_task(templates.render_initial(lambda *_, **__: None), name="a slow template")
        await wait_on_loop_until(list_rendering_processes, what="the process runs")
        started_s = world.monotonic_s()
        rendering.cancel()
        await asyncio.wait([rendering])
        await renderer.close()
        await templates.close()
        return world.monotonic_s() - started_s, list_rendering_processes()

    duration_s, remaining = asyncio.run(scenario())

    assert (True, []) == (duration_s < 2, remaining)


def test_slow_templates_of_one_job_delay_no_templates_of_another(tmp_path: Path) -> None:
    endless = '{{ $x := "%s" }}{{ range loop 90000 }}{{ $y := sha256Hex $x }}{{ end }}' % ("a" * 1_000_000)

    async def scenario() -> None:
        world = RealWorld()
        renderer = TemplateRenderer(world)
        slow = []
        for number in range(10):
            (tmp_path / f"slow{number}").mkdir()
            context = replace(build_context(tmp_path / f"slow{number}", endless), job_id="slow")
            slow_templates = create_templates(context, world, renderer)
            slow.append(world.start_task(slow_templates.render_initial(lambda *_, **__: None), name="slow"))
        (tmp_path / "quick").mkdir()
        context = replace(build_context(tmp_path / "quick", "{{ 5 }}"), job_id="quick")
        templates = create_templates(context, world, renderer)
        async with asyncio.timeout(5):
            await templates.render_initial(lambda *_, **__: None)
        for rendering in slow:
            rendering.cancel()
        await asyncio.wait(slow)
        await renderer.close()

    asyncio.run(scenario())

    assert "5" == (tmp_path / "quick" / "local" / "rendered").read_text()


def test_the_trim_that_froze_the_agent_takes_no_time(tmp_path: Path) -> None:
    template = (
        '{{ $x := "bbbbbbbbbbbb" }}{{ range loop 17 }}{{ $x = print $x $x }}{{ end }}'
        '{{ $c := print (replaceAll "b" "a" $x) "b" }}{{ trim $c $x | len }}'
    )
    render(build_context(tmp_path, template), RenderBudget(cpu_s=3))
    assert "0" == (tmp_path / "local" / "rendered").read_text()


def test_a_large_file_that_a_task_left_at_the_destination_is_not_read(tmp_path: Path) -> None:
    context = build_context(tmp_path, "short")
    with (tmp_path / "local" / "rendered").open("wb") as file:
        file.truncate(1 << 40)
    render(context)
    assert "short" == (tmp_path / "local" / "rendered").read_text()


def test_a_pipe_that_a_task_left_at_the_destination_is_replaced(tmp_path: Path) -> None:
    context = build_context(tmp_path, "short")
    os.mkfifo(tmp_path / "local" / "rendered")
    render(context)
    assert "short" == (tmp_path / "local" / "rendered").read_text()


def list_rendering_processes() -> list[int]:
    return [
        pid
        for pid in list_pids()
        if has_arguments(pid, sys.executable, "-m", "wharf.node.tasks.templates.worker")
        and (fields := read_stat_fields(pid)) is not None
        and int(fields[1]) == os.getpid()
    ]
