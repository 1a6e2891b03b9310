"""Answers what the templates of a task query, from the data of one order. Runs in the rendering process."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.languages.templates import MissingSource
from wharf.languages.templates.errors import EvaluationError
from wharf.node.files import ReadOnlyFolder
from wharf.node.tasks.context import TaskContext
from wharf.node.tasks.templates.messages import QueryAnswer

MAX_SOURCE_BYTES: Final = 4 << 20
"""Limit of a template source and of files that templates read; protects the memory of the node."""


class TaskSources:
    """The data for one rendering of a task's templates.

    Data that have not arrived yet count as empty and are added to `unresolved`: the agent must fetch them and render
    again.
    """

    def __init__(self, context: TaskContext, answers: Sequence[QueryAnswer], now_ns: int) -> None:
        self._context = context
        self._answers = {(answer.kind, answer.name): answer for answer in answers}
        self._now_ns = now_ns
        self.unresolved: dict[tuple[str, str], None] = {}
        """Kind and name of the queries without an answer."""

    def now_ns(self) -> int:
        """Return the wall clock time of the order in nanoseconds."""
        return self._now_ns

    def environment(self, name: str) -> str | None:
        """Return the value of a variable of the task; `None` if it is not set."""
        return self._context.environment.get(name)

    def file(self, path: str) -> str:
        """Return the content of a file of the allocation. Raises `MissingSource` and `EvaluationError`."""
        try:
            return read_allocation_file(self._context, path)
        except Refusal as refusal:
            if refusal.code is not RefusalCode.NOT_FOUND:  # Another attempt would fail in the same way.
                raise EvaluationError(refusal.text) from None
            raise MissingSource(f"file({path}): the allocation has no such file") from None

    def variable(self, path: str) -> Mapping[str, str]:
        """Return the items of a cluster variable; empty if they have not arrived yet.

        Raises `MissingSource` if it does not exist or may not be read.
        """
        answer = self._find_answer("variable", path)
        if answer is None:
            return {}
        if not isinstance(answer.value, Mapping):
            qualified_path = path if "@" in path else f"{path}@{self._context.namespace}.{self._context.region}"
            raise MissingSource(
                f"nomad.var.block({qualified_path})" + (f" ({answer.error_text})" if answer.error_text else "")
            )
        return answer.value

    def variables(self, prefix: str) -> Sequence[Mapping[str, object]]:
        """Return the cluster variables below a path; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_answer("variables", prefix)

    def services(self) -> Sequence[Mapping[str, object]]:
        """Return all services of the namespace; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_answer("services", "")

    def service(self, name: str) -> Sequence[Mapping[str, object]]:
        """Return the instances of a service; empty if they have not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        return self._list_answer("service", name)

    def _list_answer(self, kind: str, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the list that a query returned; empty if it has not arrived yet.

        Raises `MissingSource` if the query was refused.
        """
        answer = self._find_answer(kind, name)
        if answer is not None and answer.error_text:
            # An empty list instead would produce a wrong file.
            raise MissingSource(f"{kind}({name}): {answer.error_text}")
        return answer.value if answer is not None and isinstance(answer.value, list) else []

    def _find_answer(self, kind: str, name: str) -> QueryAnswer | None:
        """Return the answer to a query. Without one, return `None` and add the query to `unresolved`."""
        answer = self._answers.get((kind, name))
        if answer is None:
            self.unresolved[kind, name] = None
        return answer


def read_allocation_file(context: TaskContext, path: str) -> str:
    """Return the content of a file of the allocation, at most `MAX_SOURCE_BYTES`.

    Raises `Refusal` if it does not exist, is secret or is outside of the allocation's folders.
    """
    destination = context.resolve_path(path, "the path of a file in a template")
    descriptor = ReadOnlyFolder(destination.root).open_file(destination.path)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(MAX_SOURCE_BYTES).decode(errors="replace")
