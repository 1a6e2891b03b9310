"""The rendering process: renders the templates of one task after another, within limits that the kernel enforces.

It reads orders from standard input, writes replies to standard output, and ends when its input ends. A template is code
of a caller who may submit jobs. In this process it can hold no interpreter but its own.
"""

import contextlib
import math
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.refusal import Refusal
from wharf.languages.templates import ParsedTemplate, TemplateError
from wharf.node.drivers.port import View
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.folders import TaskFolders
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.node.tasks.templates.budget import RenderBudget
from wharf.node.tasks.templates.messages import (
    LENGTH_BYTES,
    MAX_OUTPUT_BYTES,
    MAX_VARIABLES_BYTES,
    RenderedFile,
    RenderOrder,
    RenderReply,
)
from wharf.node.tasks.templates.sources import TaskSources, read_allocation_file

MAX_ERROR_CHARS: Final = 2_000
"""Limit of an error text; protects the events of a task from texts of any length."""
MAX_RETAINED_BYTES: Final = 64 << 20
"""A process that has used more memory ends after its reply, so that a waiting process holds little."""
OUT_OF_MEMORY_SCORE: Final = 500
"""When the machine has no memory left, the kernel ends this process before the agent and its tasks."""


class _BudgetExceeded(Exception):
    """The templates need more than the budget; the text names the limit."""


class Renderer:
    """Renders the templates of orders with the budget of this process."""

    def __init__(self, budget: RenderBudget) -> None:
        self._budget = budget

    def render(self, order: RenderOrder) -> RenderReply:
        """Return the rendered files of an order, or what they lack, or why they failed."""
        context = TaskContext(
            allocation_id="",
            namespace=order.namespace,
            region=order.region,
            task=Task(),
            folders=TaskFolders(Path(order.task_folder), Path(order.shared_folder)),
            view=View(order.view),
            environment=dict(order.environment),
            reference_values=ReferenceValues(order.references).with_variables(order.environment),
        )
        sources = TaskSources(context, order.answers, order.now_ns)
        files: list[RenderedFile] = []
        missing: dict[str, None] = {}
        reads_files, output_bytes, variables_bytes, name = False, 0, 0, ""
        try:
            for template in order.templates:
                name = template.name
                source = template.source
                if not source and template.source_path:
                    source = _read_source(context, template.source_path)
                parsed = ParsedTemplate(
                    source,
                    left=template.left_delimiter,
                    right=template.right_delimiter,
                    is_strict=template.is_strict,
                )
                result = parsed.render(None, sources)
                missing |= dict.fromkeys(result.missing)
                reads_files = reads_files or any(kind == "file" for kind, _ in result.queries)
                data = result.text.encode()
                variables = _parse_variables(result.text, name) if template.defines_variables else {}
                output_bytes += len(data)
                variables_bytes += len(data) if template.defines_variables else 0
                _check_sizes(output_bytes, variables_bytes)
                # Files that must not be written need no memory.
                files = [] if missing or sources.unresolved else [*files, RenderedFile(data, variables)]
        except TemplateError as error:
            return RenderReply(error_text=f"template {name}: {str(error)[:MAX_ERROR_CHARS]}")
        except (TaskSetupError, _BudgetExceeded) as error:
            return RenderReply(error_text=str(error)[:MAX_ERROR_CHARS])
        except RecursionError:
            return RenderReply(error_text=f"template {name}: its expressions or values are nested too deeply")
        except MemoryError:
            return RenderReply(error_text=f"template {name}: {self._budget.describe_memory()}", is_last=True)
        except Exception as error:  # A mistake of a function must not leave the task without an answer.
            text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
            return RenderReply(error_text=f"template {name} cannot be rendered: {text[:MAX_ERROR_CHARS]}")
        if missing or sources.unresolved:
            files = []
        return RenderReply(tuple(files), tuple(sources.unresolved), tuple(missing), reads_files)


def _read_source(context: TaskContext, path: str) -> str:
    """Return a template from a file of the allocation. Raises `TaskSetupError`."""
    try:
        return read_allocation_file(context, path)
    except Refusal as refusal:
        raise TaskSetupError(f"template source {path}: {refusal.text}") from None


def _check_sizes(output_bytes: int, variables_bytes: int) -> None:
    """Raise `_BudgetExceeded` if the templates of the task have too much output together."""
    if output_bytes > MAX_OUTPUT_BYTES:
        raise _BudgetExceeded(f"the templates of the task have more than {MAX_OUTPUT_BYTES:,} bytes of output")
    if variables_bytes > MAX_VARIABLES_BYTES:
        raise _BudgetExceeded(f"the templates of the task define more than {MAX_VARIABLES_BYTES:,} bytes of variables")


def _parse_variables(text: str, template_path: str) -> dict[str, str]:
    """Return the variables in lines of `NAME=value`; a value may be quoted. Raises `TaskSetupError`.

    `template_path` is the template's path, for error messages. Empty lines and comments are skipped.
    """
    variables = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip().removeprefix("export ")
        if not line or line.startswith("#"):
            continue
        key, separator, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise TaskSetupError(
                f"template {template_path}, line {number} of its output: not a variable of the form NAME=value",
                is_final=True,
            )
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[key] = value
    return variables


# -- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve orders until the input ends. The arguments are the numbers of the budget."""
    budget = RenderBudget.from_arguments(sys.argv[1:])
    _limit_process(budget)
    renderer = Renderer(budget)
    decoder, encoder = msgspec.msgpack.Decoder(RenderOrder), msgspec.msgpack.Encoder()
    with os.fdopen(0, "rb") as orders, os.fdopen(os.dup(1), "wb") as replies:
        while head := orders.read(LENGTH_BYTES):
            reply, body = _serve_order(renderer, decoder, encoder, orders.read(int.from_bytes(head, "big")), budget)
            replies.write(len(body).to_bytes(LENGTH_BYTES, "big"))
            replies.write(body)
            replies.flush()
            signal.setitimer(signal.ITIMER_REAL, 0)
            if reply.is_last:
                break


def _serve_order(
    renderer: Renderer,
    decoder: "msgspec.msgpack.Decoder[RenderOrder]",
    encoder: msgspec.msgpack.Encoder,
    body: bytes,
    budget: RenderBudget,
) -> tuple[RenderReply, bytes]:
    """Return the reply to an order, and the same reply encoded."""
    started_s = _read_cpu_s()
    _limit_time(budget, started_s)
    try:
        reply = renderer.render(decoder.decode(body))
        reply = _complete_reply(reply, started_s)
        return reply, encoder.encode(reply)
    except MemoryError:
        reply = _complete_reply(RenderReply(error_text=budget.describe_memory(), is_last=True), started_s)
        return reply, encoder.encode(reply)


def _complete_reply(reply: RenderReply, started_s: float) -> RenderReply:
    """Return the reply with the CPU time, and with the decision whether this process ends."""
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return msgspec.structs.replace(
        reply, cpu_s=_read_cpu_s() - started_s, is_last=reply.is_last or peak_bytes > MAX_RETAINED_BYTES
    )


def _read_cpu_s() -> float:
    """Return the CPU time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _limit_process(budget: RenderBudget) -> None:
    """Set the limits that hold for the whole life of this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The agent decides when this process ends.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + budget.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY_SCORE))


def _limit_time(budget: RenderBudget, used_s: float) -> None:
    """Limit the CPU time and the time of the next order. The kernel ends this process if it takes longer."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used_s) + budget.cpu_s, hard_limit))
    signal.setitimer(signal.ITIMER_REAL, budget.wall_s)


if __name__ == "__main__":
    main()
