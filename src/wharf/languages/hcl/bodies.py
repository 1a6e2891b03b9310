"""Syntax trees of documents: bodies with arguments and blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wharf.languages.hcl.diagnostics import SourceFile, SourceRange
from wharf.languages.hcl.nodes import SyntaxNode
from wharf.languages.hcl.references import ReferenceNode


class SyntaxArgument:
    """An argument `name = value`. `references` are those that no `for` in the value binds, `calls` all calls."""

    __slots__ = ("calls", "name", "name_end", "name_start", "references", "value")

    def __init__(
        self,
        name: str,
        name_start: int,
        name_end: int,
        value: SyntaxNode,
        references: Sequence[ReferenceNode] = (),
        calls: Sequence[SyntaxNode] = (),
    ) -> None:
        self.name = name
        self.name_start = name_start
        self.name_end = name_end
        self.value = value
        self.references = references
        self.calls = calls


@dataclass(slots=True)
class BlockLabel:
    """A label of a block."""

    text: str
    start: int
    end: int


class SyntaxBlock:
    """A block. `start` and `header_end` are the offsets of its header, `end` is the offset after its closing brace."""

    __slots__ = ("body", "end", "header_end", "labels", "start", "type", "type_end")

    def __init__(
        self, kind: str, labels: Sequence[BlockLabel], body: "SyntaxBody", start: int, type_end: int, header_end: int
    ) -> None:
        self.type = kind
        self.labels = labels
        self.body = body
        self.start = start
        self.type_end = type_end
        self.header_end = header_end
        self.end = header_end


@dataclass(slots=True)
class SyntaxBody:
    """The arguments and blocks of a file or block, in the order of the text."""

    arguments: dict[str, SyntaxArgument] = field(default_factory=dict)
    blocks: list[SyntaxBlock] = field(default_factory=list)

    def list_blocks(self, kind: str) -> Iterator[SyntaxBlock]:
        """Yield the blocks of a type."""
        return (block for block in self.blocks if block.type == kind)


@dataclass(frozen=True, slots=True)
class DocumentTree:
    """A parsed document in the native form."""

    source: SourceFile
    body: SyntaxBody

    def get_range(self, start: int, end: int) -> SourceRange:
        return SourceRange(self.source, start, end)
