"""What a GraphQL request costs, told from its text before it runs.

Every connection is taken to be filled to its `first` or `last`: the requests needed to fill all of them, divided by
100, are its points. Reading is bounded: whatever is sent, the work is at most proportional to its length.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from graphql.error import GraphQLError
from graphql.language import (
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    InlineFragmentNode,
    IntValueNode,
    Lexer,
    OperationDefinitionNode,
    OperationType,
    SelectionSetNode,
    Source,
    TokenKind,
    VariableNode,
    parse,
)

from wharf.limits.core.request import QueryFacts
from wharf.limits.core.rule import GraphqlRules

MAX_PAGE_NODES: Final = 100
REQUESTS_PER_POINT: Final = 100
MAX_BODY_BYTES: Final = 1 << 20

_OPENING: Final = frozenset({TokenKind.BRACE_L, TokenKind.PAREN_L, TokenKind.BRACKET_L})
_CLOSING: Final = frozenset({TokenKind.BRACE_R, TokenKind.PAREN_R, TokenKind.BRACKET_R})

MAX_CACHED_QUERIES: Final = 4_096
MAX_CACHED_QUERY_CHARACTERS: Final = 4_096
_NO_VARIABLES: Final[Mapping[str, Any]] = {}

# What is charged for what cannot be read: the service itself will say what is wrong with it.
UNREADABLE_QUERY: Final = QueryFacts(cost=1, points=1)


class QueryTooComplex(Exception):
    """A query beyond the bounds, or none that can be read. Its text says why, and how to mend it."""


class _Sent(msgspec.Struct):
    query: str = ""
    variables: dict[str, Any] | str | None = None  # Any JSON: the query's own types decide what it means.
    operation_name: str | None = msgspec.field(default=None, name="operationName")


class _Size(msgspec.Struct, frozen=True, gc=False):
    """Of a selection, for one object that it is made on."""

    requests: int = 0
    nodes: int = 0

    def __add__(self, other: "_Size") -> "_Size":
        return _Size(self.requests + other.requests, self.nodes + other.nodes)


_NOTHING: Final = _Size()
_BODY: Final = msgspec.json.Decoder(_Sent | list[_Sent])
_VARIABLES: Final = msgspec.json.Decoder(dict[str, Any])


class QueryCostCalculator:
    """Tells the cost of queries, and remembers those that come again: clients send few texts many times.

    Of a text only the variables that are sizes of pages matter, so these are its key with the text.
    """

    def __init__(self, rules: GraphqlRules) -> None:
        self._rules = rules
        self._pages: dict[str, tuple[str, ...]] = {}
        self._facts: dict[tuple[str, str | None, tuple[int | None, ...]], QueryFacts] = {}

    def compute_body_cost(self, body: bytes) -> QueryFacts:
        """The cost of all queries in a body. Raises TooComplex; a text that is no query costs 1: the service refuses it."""
        if len(body) > MAX_BODY_BYTES:
            raise QueryTooComplex(f"The body is too long: of its bytes at most {MAX_BODY_BYTES} are read.")
        try:
            sent = _BODY.decode(body)
        except (msgspec.DecodeError, RecursionError):
            # Compressed, in another encoding, as a form: what reads that would run it at whatever cost.
            raise QueryTooComplex(
                "The body is no GraphQL request: send JSON with a text `query`, in UTF-8 and not compressed."
            ) from None
        entries = sent if isinstance(sent, list) else [sent]
        if len(entries) > self._rules.entries_most:
            most = self._rules.entries_most
            raise QueryTooComplex(f"The array has {len(entries)} queries; at most {most} are taken at once.")
        facts = [self.compute_query_cost(e.query, _variables(e.variables), e.operation_name) for e in entries]
        return QueryFacts(
            cost=sum(fact.cost for fact in facts) or 1,
            points=sum(fact.points for fact in facts) or 1,
            content=sum(fact.content for fact in facts),
        )

    def compute_query_cost(
        self, text: str, variables: Mapping[str, Any] = _NO_VARIABLES, operation_name: str | None = None
    ) -> QueryFacts:
        pages = self._pages.get(text)
        if pages is not None:
            known = self._facts.get((text, operation_name, _page_sizes(variables, pages)))
            if known is not None:
                return known
        facts, pages = _read(text, variables, operation_name, self._rules)
        if len(text) <= MAX_CACHED_QUERY_CHARACTERS and len(operation_name or "") <= MAX_CACHED_QUERY_CHARACTERS:
            if len(self._facts) >= MAX_CACHED_QUERIES:
                self._pages.clear()
                self._facts.clear()
            self._pages[text] = pages
            self._facts[text, operation_name, _page_sizes(variables, pages)] = facts
        return facts


def _variables(sent: dict[str, Any] | str | None) -> Mapping[str, Any]:
    """Some clients send them as a text. Where it holds none, a page that a variable sizes is taken to be full."""
    if not isinstance(sent, str):
        return sent or _NO_VARIABLES
    try:
        return _VARIABLES.decode(sent)
    except (msgspec.DecodeError, RecursionError):
        return _NO_VARIABLES


def _page_sizes(variables: Mapping[str, Any], names: Sequence[str]) -> tuple[int | None, ...]:
    return tuple(_as_page(variables.get(name)) if name in variables else None for name in names)


def _as_page(value: object) -> int:
    """A page size out of a request; what is none is taken to be full, as the service refuses it or fills it."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PAGE_NODES:
        return MAX_PAGE_NODES
    return value


def _read(
    text: str, variables: Mapping[str, Any], operation_name: str | None, rules: GraphqlRules
) -> tuple[QueryFacts, tuple[str, ...]]:
    """The cost of a query, and the names of the variables that it depends on."""
    try:
        _check_bounds(text, rules)
        document = parse(text, no_location=True)
        operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
        chosen = [o for o in operations if o.name is not None and o.name.value == operation_name] or operations
        if not chosen:
            return UNREADABLE_QUERY, ()
        fragments = {n.name.value: n for n in document.definitions if isinstance(n, FragmentDefinitionNode)}
        reader = _Reader(fragments, rules)
        # Without a name that fits, the service refuses several operations; until then the dearest is charged.
        facts = max((reader.facts_of(operation, variables) for operation in chosen), key=lambda f: (f.points, f.cost))
    except GraphQLError:
        return UNREADABLE_QUERY, ()
    except RecursionError:
        raise QueryTooComplex("The query and its fragments are nested too deep. Ask for less at once.") from None
    return facts, tuple(sorted(reader.pages_from))


def _check_bounds(text: str, rules: GraphqlRules) -> None:
    """Count tokens and nesting before anything recursive runs."""
    lexer = Lexer(Source(text))
    tokens = depth = 0
    while (token := lexer.advance()).kind is not TokenKind.EOF:
        tokens += 1
        depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
        if tokens > rules.tokens_most:
            raise QueryTooComplex(f"The query has more than {rules.tokens_most} words and signs. Send it in parts.")
        if depth > rules.depth_most:
            raise QueryTooComplex(
                f"The query is nested more than {rules.depth_most} levels deep. Ask for less at once."
            )


class _Reader:
    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], rules: GraphqlRules) -> None:
        self._fragments = fragments
        self._rules = rules
        self._sizes: dict[str, _Size] = {}
        self._open: list[str] = []
        self._variables: dict[str, Any] = {}
        self.pages_from: set[str] = set()
        """Variables that are sizes of pages."""

    def facts_of(self, operation: OperationDefinitionNode, variables: Mapping[str, Any]) -> QueryFacts:
        self._variables = {**_defaults(operation), **variables}
        self._sizes.clear()
        size = self._size_of(operation.selection_set)
        if size.nodes > self._rules.nodes_most:
            raise QueryTooComplex(
                f"The query may return {size.nodes} nodes; at most {self._rules.nodes_most} are possible. "
                "Ask for smaller pages."
            )
        is_mutation = operation.operation is OperationType.MUTATION
        return QueryFacts(
            # Halves are rounded up, so that the sum never costs more than it says.
            cost=max(1, (size.requests + REQUESTS_PER_POINT // 2) // REQUESTS_PER_POINT),
            points=self._rules.mutation_points if is_mutation else self._rules.query_points,
            content=self._content_of(operation.selection_set) if is_mutation else 0,
        )

    def _size_of(self, selections: SelectionSetNode | None) -> _Size:
        size = _NOTHING
        for node in selections.selections if selections is not None else ():
            match node:
                case FieldNode():
                    size += self._size_of_field(node)
                case InlineFragmentNode():
                    size += self._size_of(node.selection_set)
                case FragmentSpreadNode():
                    size += self._size_of_fragment(node.name.value)
                case _:
                    pass
        return size

    def _size_of_field(self, field: FieldNode) -> _Size:
        inner = self._size_of(field.selection_set)
        page = self._page_of(field)
        if page is None:
            return inner
        return _Size(1 + page * inner.requests, page + page * inner.nodes)

    def _size_of_fragment(self, name: str) -> _Size:
        """Worked out once for each fragment: spreads of spreads would else grow beyond all bounds."""
        if name in self._sizes:
            return self._sizes[name]
        fragment = self._fragments.get(name)
        if fragment is None or name in self._open:
            return _NOTHING  # Not valid; the service refuses it.
        if len(self._open) >= self._rules.depth_most:
            raise QueryTooComplex(
                f"Fragments are nested more than {self._rules.depth_most} deep. Ask for less at once."
            )
        self._open.append(name)
        size = self._sizes[name] = self._size_of(fragment.selection_set)
        self._open.pop()
        return size

    def _page_of(self, field: FieldNode) -> int | None:
        """How many a connection returns at most; None for a field that is no connection."""
        pages = [self._number(arg.value) for arg in field.arguments or () if arg.name.value in ("first", "last")]
        return max(pages) if pages else None

    def _number(self, value: object) -> int:
        if isinstance(value, IntValueNode):
            # A number of a thousand digits is no page, and is not worth reading.
            return _as_page(int(value.value) if len(value.value) <= len(str(MAX_PAGE_NODES)) else MAX_PAGE_NODES)
        if isinstance(value, VariableNode):
            self.pages_from.add(value.name.value)
            return _as_page(self._variables.get(value.name.value))
        return MAX_PAGE_NODES

    def _content_of(self, selections: SelectionSetNode | None, depth: int = 0) -> int:
        """How many of the mutations make content. Those in fragments count too, once a spread."""
        count = 0
        for node in _walked(selections):
            if isinstance(node, FieldNode):
                count += node.name.value in self._rules.content_mutations
            elif isinstance(node, InlineFragmentNode):
                count += self._content_of(node.selection_set, depth)
            elif isinstance(node, FragmentSpreadNode) and depth < 2:
                fragment = self._fragments.get(node.name.value)
                count += self._content_of(fragment.selection_set, depth + 1) if fragment is not None else 0
        return count


def _walked(selections: SelectionSetNode | None) -> Sequence[object]:
    return selections.selections if selections is not None else ()


def _defaults(operation: OperationDefinitionNode) -> dict[str, int]:
    found = {}
    for variable in operation.variable_definitions or ():
        if isinstance(variable.default_value, IntValueNode) and len(variable.default_value.value) <= 3:
            found[variable.variable.name.value] = int(variable.default_value.value)
    return found
