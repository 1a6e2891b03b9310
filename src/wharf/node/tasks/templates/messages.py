"""What the agent and a rendering process send to each other: one order, then one reply."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

MAX_OUTPUT_BYTES: Final = 64 << 20
"""Limit of the rendered files of one task together; protects the memory of the agent, which receives them."""
MAX_VARIABLES_BYTES: Final = 2 << 20
"""Limit of the variables that templates of one task define. The kernel refuses to start programs with more."""
LENGTH_BYTES: Final = 4
"""Each message follows its length, a number of this size."""


class TemplateOrder(msgspec.Struct, frozen=True, array_like=True):
    """One template to render."""

    name: str
    """Names the template in error messages."""
    source: str
    source_path: str
    """The file with the template, if `source` is empty."""
    left_delimiter: str = ""
    right_delimiter: str = ""
    is_strict: bool = False
    defines_variables: bool = False


class QueryAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a query to the cluster, as of now."""

    kind: str  # variable, variables, service or services
    name: str
    value: Any = None  # JSON; `None` if the object does not exist.
    error_text: str = ""


class RenderOrder(msgspec.Struct, frozen=True, array_like=True):
    """Agent to process: render all these templates of one task."""

    templates: tuple[TemplateOrder, ...]
    namespace: str
    region: str
    task_folder: str
    shared_folder: str
    view: str
    environment: Mapping[str, str]
    references: Mapping[str, str]
    answers: tuple[QueryAnswer, ...]
    now_ns: int


class RenderedFile(msgspec.Struct, frozen=True, array_like=True):
    """The output of one template."""

    data: bytes
    variables: dict[str, str] = {}


class RenderReply(msgspec.Struct, frozen=True, array_like=True):
    """Process to agent: the outputs in the order of the templates, or what they lack, or why they failed."""

    files: tuple[RenderedFile, ...] = ()
    """Empty unless everything that the templates query exists."""
    unresolved: tuple[tuple[str, str], ...] = ()
    """Kind and name of the queries without an answer."""
    missing: tuple[str, ...] = ()
    """The queried things that do not exist."""
    reads_files: bool = False
    error_text: str = ""
    cpu_s: float = 0.0
    is_last: bool = False
    """Whether the process ends now, because it holds much memory."""
