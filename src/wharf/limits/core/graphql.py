"""The cost of a GraphQL request, computed from its text before it runs.

Every connection is assumed to be filled to its `first` or `last`. The requests needed to fill all of them, divided by
100, are the points of the query. Work is limited by the length of the text.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_plus

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

from wharf.limits.core.json_members import AmbiguousMember, check_members, check_unique
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.rule import GraphqlRules

MAX_PAGE_NODES: Final = 100
"""The largest page size, which is also assumed for missing or invalid ones."""
REQUESTS_PER_POINT: Final = 100
"""The number of requests, needed to fill connections, that cost one point."""
MAX_BODY_BYTES: Final = 1 << 20
"""Longer bodies are refused before they are parsed."""

MAX_URL_CHARACTERS: Final = 1 << 16
"""A longer query of a URL is refused before it is parsed."""
MAX_URL_PARAMETERS: Final = 100
"""More parameters in a URL are refused; limits the time to decode them."""
MAX_OPERATIONS: Final = 20
"""More operations are refused if `operationName` selects none of them; limits the time, because each is measured."""
MIN_COMPACTED_CHARACTERS: Final = 1_024
"""Shorter queries are read as they are: they cannot contain much that the cost does not depend on."""
MAX_COMPACTED_CHARACTERS: Final = 1 << 18
"""A longer query, without its comments and texts, is refused; limits the time to read it."""
MAX_CONTENT: Final = 1_000_000
"""The largest number of content mutations of a query, more than any useful ceiling. Nested fragments multiply the number, and
counters hold 64 bits."""
_INSIGNIFICANT: Final = re.compile(
    r'(""")(?:[^"\\]++|\\"""|\\(?!""")|"(?!""))*+("""|)'  # A block text.
    r'|(")(?:[^"\\\n\r]++|\\[^\n\r])*+("?)'
    r"|(?:#[^\n\r]*+|[ \t\n\r,\ufeff]{2})(?:[ \t\n\r,\ufeff]++|#[^\n\r]*+)*+"
)
"""The content of texts, repeated white space, and comments. The groups hold the quotes, which stay."""

_OPENING: Final = frozenset({TokenKind.BRACE_L, TokenKind.PAREN_L, TokenKind.BRACKET_L})
_CLOSING: Final = frozenset({TokenKind.BRACE_R, TokenKind.PAREN_R, TokenKind.BRACKET_R})

MAX_CACHED_QUERIES: Final = 4_096
"""Limits the memory of the query cache; a full cache is cleared."""
MAX_CACHED_QUERY_CHARACTERS: Final = 4_096
"""Longer queries are not cached."""
_NO_VARIABLES: Final[Mapping[str, Any]] = {}

# The cost of a query that cannot be parsed. The service itself reports what is wrong with it.
UNREADABLE_QUERY: Final = QueryFacts(cost=1, points=1)


class QueryTooComplex(Exception):
    """A query beyond the limits on query size, or a body that is not a query. The text is sent to the caller."""


class _GraphqlBody(msgspec.Struct):
    """One request in a GraphQL body."""

    query: str = ""
    variables: dict[str, Any] | str | None = None  # Any JSON: the query's own types decide what it means.
    operation_name: str | None = msgspec.field(default=None, name="operationName")


class _UrlRequest(msgspec.Struct):
    """The parameters of a GraphQL request in the query of its URL; `None` for those that it has not."""

    query: str | None = None
    variables: str | None = None
    operation_name: str | None = None


class _SelectionSize(msgspec.Struct, frozen=True, gc=False):
    """The size of a GraphQL selection, for one object that it is applied to."""

    requests: int = 0
    """Requests that a client would send if it read each connection (paged list) in the selection separately."""
    nodes: int = 0
    """Objects that it can return."""

    def __add__(self, other: "_SelectionSize") -> "_SelectionSize":
        return _SelectionSize(self.requests + other.requests, self.nodes + other.nodes)


_EMPTY_SIZE: Final = _SelectionSize()
_MEMBERS: Final = ("query", "variables", "operationName")
"""The members of a request in a body that its cost depends on."""
_BODY: Final = msgspec.json.Decoder(_GraphqlBody | list[_GraphqlBody])
_VARIABLES: Final = msgspec.json.Decoder(dict[str, Any])


class _TokenBudget(msgspec.Struct):
    """The number of tokens that may still be read in one body: limits the time for a body with many queries."""

    left: int


class QueryCostCalculator:
    """Computes the cost of GraphQL queries and caches it, because clients send few query texts many times.

    The cost depends on the text and on the variables that are page sizes. These are the key of the cache.
    """

    def __init__(self, rules: GraphqlRules) -> None:
        self._rules = rules
        self._page_variables: dict[str, tuple[str, ...]] = {}
        """For each cached text, the names of the variables that are page sizes."""
        self._facts: dict[tuple[str, str | None, tuple[int | None, ...]], QueryFacts] = {}

    def compute_request_cost(self, body: bytes | None, url_query: str) -> QueryFacts | None:
        """Return the cost of a GraphQL request, from its body or the query of its URL; `None` if neither has a query.

        Services accept a query in the URL with any method. Raises `QueryTooComplex` if it exceeds the limits on query
        size, if it cannot be read, or if body and URL contradict each other.
        """
        url = _read_url_request(url_query)
        if body is None:
            if url.query is None:
                return None  # A page for browsers, or a query that is only named by its hash.
            return self.compute_query_cost(url.query, _parse_variables(url.variables), url.operation_name)
        if url.query is not None or url.variables is not None:
            name = "query" if url.query is not None else "variables"
            raise QueryTooComplex(
                f"The request has a body, and `{name}` in its URL. Send query and variables either in the body or in the URL."
            )
        return self.compute_body_cost(body, url.operation_name)

    def compute_body_cost(self, body: bytes, url_operation_name: str | None = None) -> QueryFacts:
        """Return the cost of all GraphQL queries in a request body.

        A text that is not a query costs 1; the service refuses it. `url_operation_name` is the name of an operation in the
        URL: if the body has another one, the most expensive operation counts. Raises `QueryTooComplex` if the body is too
        long or not JSON, if services can read it in different ways, or if a query exceeds the limits on query size.
        """
        if len(body) > MAX_BODY_BYTES:
            raise QueryTooComplex(f"The body is longer than {MAX_BODY_BYTES} bytes. Send a smaller one.")
        try:
            decoded = _BODY.decode(body)
            check_members(body, _MEMBERS, unique_in="variables")
        except AmbiguousMember as problem:
            raise QueryTooComplex(str(problem)) from None
        except (msgspec.DecodeError, RecursionError):
            # The body may be compressed, encoded or a form. A service that reads such bodies would run queries uncounted.
            raise QueryTooComplex(
                "The body is not a GraphQL request. Send JSON with a text `query`, in UTF-8 and not compressed."
            ) from None
        entries = decoded if isinstance(decoded, list) else [decoded]
        if len(entries) > self._rules.entries_most:
            max_entries = self._rules.entries_most
            raise QueryTooComplex(
                f"The array has {len(entries)} queries; at most {max_entries} are allowed. Send several smaller arrays."
            )
        budget = _TokenBudget(self._rules.tokens_most)
        facts = [
            self.compute_query_cost(
                e.query,
                _parse_variables(e.variables),
                e.operation_name if url_operation_name in (None, e.operation_name) else None,
                budget=budget,
            )
            for e in entries
        ]
        return QueryFacts(
            cost=sum(fact.cost for fact in facts) or 1,
            points=sum(fact.points for fact in facts) or 1,
            content=sum(fact.content for fact in facts),
            has_mutations=any(fact.has_mutations for fact in facts),
        )

    def compute_query_cost(
        self,
        text: str,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        operation_name: str | None = None,
        *,
        budget: _TokenBudget | None = None,
    ) -> QueryFacts:
        """Return the cost of one GraphQL query. Raises `QueryTooComplex` if it exceeds the limits on query size.

        `budget` is what is left of the tokens of a body with several queries.
        """
        page_variables = self._page_variables.get(text)
        if page_variables is not None:
            cached = self._facts.get((text, operation_name, _list_page_sizes(variables, page_variables)))
            if cached is not None:
                return cached
        facts, page_variables = _compute_facts(
            text, variables, operation_name, self._rules, budget or _TokenBudget(self._rules.tokens_most)
        )
        if len(text) <= MAX_CACHED_QUERY_CHARACTERS and len(operation_name or "") <= MAX_CACHED_QUERY_CHARACTERS:
            if len(self._facts) >= MAX_CACHED_QUERIES:
                self._page_variables.clear()
                self._facts.clear()
            self._page_variables[text] = page_variables
            self._facts[text, operation_name, _list_page_sizes(variables, page_variables)] = facts
        return facts


def _read_url_request(url_query: str) -> _UrlRequest:
    """Return the GraphQL request in the query of a URL.

    Some services also separate parameters by `;`, and they differ in which of two parameters with one name they use. Raises
    `QueryTooComplex` if a parameter is therefore ambiguous, or if the query of the URL is too long.
    """
    if not url_query:
        return _UrlRequest()
    if len(url_query) > MAX_URL_CHARACTERS:
        raise QueryTooComplex(
            f"The URL has more than {MAX_URL_CHARACTERS} characters. Send the query in the body of a POST."
        )
    parameters = url_query.split("&")
    if url_query.count("&") + url_query.count(";") >= MAX_URL_PARAMETERS:
        raise QueryTooComplex(
            f"The URL has more than {MAX_URL_PARAMETERS} parameters. Leave out those that are not needed."
        )
    values: dict[str, str] = {}
    for parameter in itertools.chain(parameters, *(part.split(";") for part in parameters if ";" in part)):
        name, _, text = parameter.partition("=")
        name = unquote_plus(name).strip()
        if name not in ("query", "variables", "operationName"):
            continue
        value = unquote_plus(text)
        if values.setdefault(name, value) != value:
            raise QueryTooComplex(
                f"The URL has several values of `{name}`. Send one, and write %3B instead of a semicolon in it."
            )
    return _UrlRequest(values.get("query"), values.get("variables"), values.get("operationName"))


def _parse_variables(variables: dict[str, Any] | str | None) -> Mapping[str, Any]:
    """Return the variables as a mapping.

    Some clients send them as a JSON text. If the text is invalid, there are no variables, and page sizes count as
    full. Raises `QueryTooComplex` if the text has a variable twice.
    """
    if not isinstance(variables, str):
        return variables or _NO_VARIABLES
    try:
        decoded = _VARIABLES.decode(variables)
        check_unique(variables.encode())
    except AmbiguousMember as problem:
        raise QueryTooComplex(str(problem)) from None
    except (msgspec.DecodeError, RecursionError):
        return _NO_VARIABLES
    return decoded


def _list_page_sizes(variables: Mapping[str, Any], names: Sequence[str]) -> tuple[int | None, ...]:
    """Return the page size that each of the named variables sets, or `None` for a variable that is not set."""
    return tuple(_clamp_page_size(variables.get(name)) if name in variables else None for name in names)


def _clamp_page_size(value: object) -> int:
    """Return the value if it is a valid page size, else the largest page size.

    The service refuses an invalid page size or uses its maximum.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_PAGE_NODES:
        return MAX_PAGE_NODES
    return value


def _compute_facts(
    text: str,
    variables: Mapping[str, Any],
    operation_name: str | None,
    rules: GraphqlRules,
    budget: _TokenBudget,
) -> tuple[QueryFacts, tuple[str, ...]]:
    """Return the cost of a query, and the names of the variables that set page sizes, on which the cost depends.

    Raises `QueryTooComplex` if the query exceeds the limits on query size.
    """
    if len(text) >= MIN_COMPACTED_CHARACTERS:
        text = compact_query(text)
    try:
        _check_query_size(text, rules, budget)
        document = parse(text, no_location=True)
        operations = [node for node in document.definitions if isinstance(node, OperationDefinitionNode)]
        candidates = [o for o in operations if o.name is not None and o.name.value == operation_name] or operations
        if not candidates:
            return UNREADABLE_QUERY, ()
        if len(candidates) > MAX_OPERATIONS:
            raise QueryTooComplex(
                f"The query has {len(candidates)} operations that `operationName` can mean; at most {MAX_OPERATIONS} are "
                "allowed. Name one operation."
            )
        fragments = {n.name.value: n for n in document.definitions if isinstance(n, FragmentDefinitionNode)}
        reader = _CostReader(fragments, rules)
        # The service refuses several operations without a matching name, or runs one of them: the highest of each cost is charged.
        measured = [reader.compute_facts(operation, variables) for operation in candidates]
        facts = QueryFacts(
            cost=max(fact.cost for fact in measured),
            points=max(fact.points for fact in measured),
            content=max(fact.content for fact in measured),
            has_mutations=any(fact.has_mutations for fact in measured),
        )
    except GraphQLError:
        return UNREADABLE_QUERY, ()
    except RecursionError:
        raise QueryTooComplex("The query and its fragments are nested too deeply. Send a simpler query.") from None
    return facts, tuple(sorted(reader.page_variables))


def compact_query(text: str) -> str:
    """Return a query without comments, repeated white space and the content of texts, which its cost does not depend on.

    To read them with a lexer written in Python takes a second for each megabyte. Raises `QueryTooComplex` if the query is
    too long even so.
    """
    # A space between the quotes, because the quotes of two adjacent empty texts would begin a block text.
    text = _INSIGNIFICANT.sub(r"\1\3 \2\4", text)
    if len(text) > MAX_COMPACTED_CHARACTERS:
        raise QueryTooComplex(
            f"The query has more than {MAX_COMPACTED_CHARACTERS} characters without its comments and texts. "
            "Send several smaller queries."
        )
    return text


def _check_query_size(text: str, rules: GraphqlRules, budget: _TokenBudget) -> None:
    """Check the number of tokens and the nesting of a query, before it is parsed recursively.

    Raises `QueryTooComplex` if it has too many tokens or levels.
    """
    lexer = Lexer(Source(text))
    depth = 0
    while (token := lexer.advance()).kind is not TokenKind.EOF:
        budget.left -= 1
        depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
        if budget.left < 0:
            raise QueryTooComplex(f"The query has more than {rules.tokens_most} tokens. Send several smaller queries.")
        if depth > rules.depth_most:
            raise QueryTooComplex(
                f"The query is nested more than {rules.depth_most} levels deep. Send a simpler query."
            )


class _CostReader:
    """Walks the syntax tree of one query and adds up its cost."""

    def __init__(self, fragments: Mapping[str, FragmentDefinitionNode], rules: GraphqlRules) -> None:
        self._fragments = fragments
        self._rules = rules
        self._sizes: dict[str, _SelectionSize] = {}
        self._contents: dict[str, int] = {}
        """For each fragment that was read, how many of its mutations create content."""
        self._open_fragments: list[str] = []
        self._variables: dict[str, Any] = {}
        self.page_variables: set[str] = set()
        """Names of the variables that set page sizes."""

    def compute_facts(self, operation: OperationDefinitionNode, variables: Mapping[str, Any]) -> QueryFacts:
        """Return the cost of one operation of the query. Raises `QueryTooComplex` if it may return too many nodes."""
        self._variables = {**_read_default_values(operation), **variables}
        self._sizes.clear()
        size = self._measure_selections(operation.selection_set)
        if size.nodes > self._rules.nodes_most:
            raise QueryTooComplex(
                f"The query may return {size.nodes} nodes; at most {self._rules.nodes_most} are allowed. "
                "Request smaller pages."
            )
        is_mutation = operation.operation is OperationType.MUTATION
        return QueryFacts(
            # Rounded half up, to at least 1.
            cost=max(1, (size.requests + REQUESTS_PER_POINT // 2) // REQUESTS_PER_POINT),
            points=self._rules.mutation_points if is_mutation else self._rules.query_points,
            content=self._count_content(operation.selection_set) if is_mutation else 0,
            has_mutations=is_mutation,
        )

    def _measure_selections(self, selections: SelectionSetNode | None) -> _SelectionSize:
        """Return how many requests and nodes a selection set needs, with its fields, fragments and nested selections."""
        size = _EMPTY_SIZE
        for node in selections.selections if selections is not None else ():
            match node:
                case FieldNode():
                    size += self._measure_field(node)
                case InlineFragmentNode():
                    size += self._measure_selections(node.selection_set)
                case FragmentSpreadNode():
                    size += self._measure_fragment(node.name.value)
                case _:
                    pass
        return size

    def _measure_field(self, field: FieldNode) -> _SelectionSize:
        """Return how many requests and nodes a field needs.

        A connection with page size n needs one request and n nodes, and n times what its own selections need.
        """
        field_size = self._measure_selections(field.selection_set)
        page_size = self._read_page_size(field)
        if page_size is None:
            return field_size
        return _SelectionSize(1 + page_size * field_size.requests, page_size + page_size * field_size.nodes)

    def _measure_fragment(self, name: str) -> _SelectionSize:
        """Return how many requests and nodes a fragment needs; nothing if it is unknown or contains itself.

        Each fragment is measured once: measuring nested spreads again would take exponential time.
        """
        if name in self._sizes:
            return self._sizes[name]
        fragment = self._fragments.get(name)
        if fragment is None or name in self._open_fragments:
            return _EMPTY_SIZE  # Invalid; the service refuses the query.
        if len(self._open_fragments) >= self._rules.depth_most:
            raise QueryTooComplex(
                f"Fragments are nested more than {self._rules.depth_most} levels deep. Send a simpler query."
            )
        self._open_fragments.append(name)
        size = self._sizes[name] = self._measure_selections(fragment.selection_set)
        self._open_fragments.pop()
        return size

    def _read_page_size(self, field: FieldNode) -> int | None:
        """Return the maximum page size of a connection; `None` for a field that is not a connection."""
        page_sizes = [
            self._read_page_argument(arg.value) for arg in field.arguments or () if arg.name.value in ("first", "last")
        ]
        return max(page_sizes) if page_sizes else None

    def _read_page_argument(self, value: object) -> int:
        """Return the page size that the value of a `first` or `last` argument sets, at most `MAX_PAGE_NODES`.

        If the value is a variable, its name is added to `page_variables`.
        """
        if isinstance(value, IntValueNode):
            # Numbers with more digits than the maximum are not converted: that could take long.
            return _clamp_page_size(
                int(value.value) if len(value.value) <= len(str(MAX_PAGE_NODES)) else MAX_PAGE_NODES
            )
        if isinstance(value, VariableNode):
            self.page_variables.add(value.name.value)
            return _clamp_page_size(self._variables.get(value.name.value))
        return MAX_PAGE_NODES

    def _count_content(self, selections: SelectionSetNode | None) -> int:
        """Return how many of the mutations in these selections create content, at most `MAX_CONTENT`.

        A mutation in a fragment counts once for each use of the fragment. Each fragment is read once: reading nested spreads again
        would take exponential time.
        """
        count = 0
        for node in _list_selections(selections):
            if isinstance(node, FieldNode):
                count += node.name.value in self._rules.content_mutations
            elif isinstance(node, InlineFragmentNode):
                count += self._count_content(node.selection_set)
            elif isinstance(node, FragmentSpreadNode):
                count += self._count_fragment_content(node.name.value)
        return min(count, MAX_CONTENT)

    def _count_fragment_content(self, name: str) -> int:
        """Return how many mutations of a fragment create content; none if it is unknown or contains itself."""
        if name not in self._contents:
            self._contents[name] = 0  # For a fragment that contains itself: the service refuses it.
            fragment = self._fragments.get(name)
            self._contents[name] = self._count_content(fragment.selection_set) if fragment is not None else 0
        return self._contents[name]


def _list_selections(selections: SelectionSetNode | None) -> Sequence[object]:
    """Return the nodes of a selection set; empty for `None`."""
    return selections.selections if selections is not None else ()


def _read_default_values(operation: OperationDefinitionNode) -> dict[str, int]:
    """Return the default values of the variables that could be page sizes: integers of at most three digits."""
    values = {}
    for variable in operation.variable_definitions or ():
        if isinstance(variable.default_value, IntValueNode) and len(variable.default_value.value) <= 3:
            values[variable.variable.name.value] = int(variable.default_value.value)
    return values
