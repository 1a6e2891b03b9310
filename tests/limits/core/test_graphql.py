"""The cost of GraphQL queries, computed before they run."""

import contextlib
import gzip
from urllib.parse import urlencode

import msgspec
import pytest
from graphql.error import GraphQLSyntaxError
from graphql.language import Lexer, Source, TokenKind
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from wharf.limits.core.graphql import (
    MAX_COMPACTED_CHARACTERS,
    UNREADABLE_QUERY,
    QueryCostCalculator,
    QueryTooComplex,
    compact_query,
)
from wharf.limits.core.request import QueryFacts
from wharf.limits.core.rule import GraphqlRules

RULES = GraphqlRules(content_mutations=("addComment",))


def cost(text: str, variables: dict[str, object] | None = None) -> int:
    return QueryCostCalculator(RULES).compute_query_cost(text, variables or {}).cost


def test_the_worked_sum_of_100_repositories_50_issues_and_60_labels_is_51_points() -> None:
    text = "{ viewer { repositories(first: 100) { edges { node { issues(first: 50) { nodes { labels(first: 60) { nodes { name } } } } } } } } }"

    assert cost(text) == 51


def test_a_query_costs_at_least_1() -> None:
    assert cost("{ viewer { login } }") == 1


def test_costs_of_sibling_connections_add_up() -> None:
    connection = "a%d: repositories(first: 100) { nodes { issues(first: 1) { nodes { id } } } }"

    assert cost("{ " + " ".join(connection % number for number in range(10)) + " }") == 10


def test_page_sizes_are_read_from_variables_and_their_defaults() -> None:
    text = "query($n: Int = 2, $m: Int) { r(first: $n) { i(first: $m) { l(last: 1) { id } } } }"

    assert [cost(text, {"m": 100}), cost(text, {"n": 100, "m": 100})] == [2, 101]


@pytest.mark.parametrize("page", ["$missing", "1000", "-1", "0", '"x"', "null"])
def test_an_unknown_page_size_counts_as_full(page: str) -> None:
    assert cost(f"query($missing: Int) {{ r(first: {page}) {{ i(first: 100) {{ id }} }} }}") == 1
    assert cost(f"query($missing: Int) {{ r(first: {page}) {{ i(first: 100) {{ l(first: 1) {{ id }} }} }} }}") == 101


def test_a_fragment_costs_at_each_spread() -> None:
    text = "{ a(first: 100) { ...F } b(first: 100) { ... on X { ...F } } } fragment F on X { i(first: 1) { id } }"

    assert cost(text) == 2


def test_nested_fragments_are_measured_in_linear_time() -> None:
    parts = [f"fragment F{n} on X {{ ...F{n + 1} ...F{n + 1} }}" for n in range(60)]
    text = "{ ...F0 } " + " ".join(parts) + " fragment F60 on X { id }"

    assert cost(text) == 1


def test_cyclic_fragments_end() -> None:
    assert cost("{ ...A } fragment A on X { ...B } fragment B on X { ...A a(first: 100) { b(first: 1) { id } } }") == 1


def test_more_nodes_than_a_query_may_return_are_refused() -> None:
    with pytest.raises(QueryTooComplex, match="may return 1010100 nodes; at most 500000"):
        cost("{ a(first: 100) { b(first: 100) { c(first: 100) { id } } } }")


def test_a_body_is_read_by_its_operation_name_and_variables() -> None:
    body = msgspec.json.encode(
        {
            "query": "query A { x } query B($n: Int) { r(first: $n) { i(first: 100) { l(first: 1) { id } } } }",
            "operationName": "B",
            "variables": {"n": 50},
        }
    )

    assert QueryCostCalculator(RULES).compute_body_cost(body) == QueryFacts(cost=51, points=1)


def test_without_an_operation_name_the_most_expensive_operation_is_charged() -> None:
    assert QueryCostCalculator(RULES).compute_query_cost("query A { x } mutation B { y }").points == 5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b'{"query": 3}',
        b'{"query": "mutation { addComment { id } }", "variables": [1]}',
        b'\xef\xbb\xbf{"query": "mutation { addComment { id } }"}',
        gzip.compress(
            b'{"query": "mutation { addComment { id } }"}', mtime=0
        ),  # Without a time, so that the test has the same id each time.
        b"query=mutation+%7B+addComment+%7B+id+%7D+%7D",
        b"[" * 100_000,
    ],
)
def test_a_body_that_cannot_be_parsed_is_refused(body: bytes) -> None:
    with pytest.raises(QueryTooComplex, match="is not a GraphQL request"):
        QueryCostCalculator(RULES).compute_body_cost(body)


@pytest.mark.parametrize(
    ("body", "member"),
    [
        (b'{"query": "{a}", "query": "{b}"}', "query"),
        (b'{"Query": "mutation { addComment { id } }"}', "Query"),
        (b'{"query": "{a}", "QUERY": "mutation { addComment { id } }"}', "QUERY"),
        (b'[{"query": "{a}"}, {"query": "{a}", "\\u0051uery": "{b}"}]', "Query"),
        (b'{"query": "query A {a} mutation B {b}", "operationName": "A", "operationname": "B"}', "operationname"),
        ('{"query": "{a}", "variable\u017f": {}}'.encode(), "variable\u017f"),
        (b'{"query": "query($n: Int) { r(first: $n) { id } }", "variables": {"n": 1, "n": 100}}', "n"),
        (b'{"query": "query($n: Int) { r(first: $n) { id } }", "variables": "{\\"n\\": 1, \\"n\\": 100}"}', "n"),
    ],
)
def test_a_member_that_services_read_in_different_ways_is_refused(body: bytes, member: str) -> None:
    with pytest.raises(QueryTooComplex, match=f"member `{member}`"):
        QueryCostCalculator(RULES).compute_body_cost(body)


def test_other_members_and_variables_that_resemble_each_other_are_accepted() -> None:
    body = b'{"extensions": {"query": 1}, "query": "{a}", "id": 1, "ID": 2, "variables": {"query": "a", "Query": "b"}}'

    assert QueryCostCalculator(RULES).compute_body_cost(body) == QueryFacts(cost=1, points=1)


def test_members_are_compared_within_one_query_of_an_array() -> None:
    body = b'[{"query": "{a}", "variables": {"n": {"n": 1}}}, {"query": "{a: b(x: \\"{\\")}", "variables": {"n": "\\"n\\":"}}]'

    assert QueryCostCalculator(RULES).compute_body_cost(body) == QueryFacts(cost=2, points=2)


def test_variables_can_be_a_json_text() -> None:
    query = "query($n: Int) { r(first: $n) { i(first: 100) { l(first: 1) { id } } } }"
    bodies = [msgspec.json.encode({"query": query, "variables": text}) for text in ('{"n": 2}', "", "{", "[1]")]

    # A variable without a number counts as a full page.
    assert [QueryCostCalculator(RULES).compute_body_cost(body).cost for body in bodies] == [2, 101, 101, 101]


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"query": "{"}', b'{"query": "fragment F on X { a }"}'])
def test_a_text_that_is_not_a_query_costs_1(body: bytes) -> None:
    assert QueryCostCalculator(RULES).compute_body_cost(body) in (UNREADABLE_QUERY, QueryFacts(cost=1, points=1))


def test_the_refusal_of_a_long_body_names_the_maximum() -> None:
    with pytest.raises(QueryTooComplex, match=r"^The body is longer than 1048576 bytes\. Send a smaller one\.$"):
        QueryCostCalculator(RULES).compute_body_cost(b" " * 1_048_577)  # One byte more than is read.


def test_arrays_have_a_maximum_length() -> None:
    with pytest.raises(QueryTooComplex, match="at most 100 are allowed"):
        QueryCostCalculator(RULES).compute_body_cost(msgspec.json.encode([{"query": "{a}"}] * 101))


def test_a_number_of_a_thousand_digits_counts_as_a_full_page() -> None:
    assert cost("{ r(first: " + "9" * 1_000 + ") { id } }") == 1


def test_mutations_that_create_content_count_in_fragments_too() -> None:
    text = "mutation { ...F ... on Mutation { addComment { id } } } fragment F on Mutation { addComment { id } other }"

    assert QueryCostCalculator(RULES).compute_query_cost(text).content == 2


def test_a_query_creates_no_content() -> None:
    assert QueryCostCalculator(RULES).compute_query_cost("{ addComment { id } }").content == 0


def test_a_cached_query_costs_by_its_own_variables() -> None:
    costs = QueryCostCalculator(RULES)
    text = "query($n: Int = 1) { r(first: $n) { i(first: 100) { l(first: 1) { id } } } }"
    variable_sets: list[dict[str, object]] = [
        {"n": 100},
        {"n": 2},
        {"n": 100, "other": []},
        {},
        {"n": None},
        {"n": [3]},
    ]

    assert [costs.compute_query_cost(text, variables).cost for variables in variable_sets * 2] == [
        101,
        2,
        101,
        1,
        101,
        101,
    ] * 2


def test_a_repeated_query_is_analysed_once() -> None:
    costs = QueryCostCalculator(RULES)

    def compute(n: int) -> object:
        return costs.compute_query_cost("query A($n: Int) { r(first: $n) { id } }", {"n": n}, "A")

    first = compute(1)
    assert (compute(1) is first, compute(2) is first, compute(1) is first) == (True, False, True)


def test_a_cached_query_costs_by_its_own_operation() -> None:
    costs = QueryCostCalculator(RULES)

    assert [
        costs.compute_query_cost("query A { x } mutation B { y }", {}, name).points for name in ("A", "B", "A")
    ] == [1, 5, 1]


def test_fragments_that_add_up_to_a_great_depth_are_refused() -> None:
    parts = [f"fragment F{n} on X {{ {'a { ' * 15} ...F{n + 1} {'} ' * 15} }}" for n in range(90)]

    with pytest.raises(QueryTooComplex, match="nested too deep"):
        cost("{ ...F0 } " + " ".join(parts) + " fragment F90 on X { id }")


def test_a_query_just_within_the_limits_is_accepted() -> None:
    assert cost("{ a " * 100 + "}" * 100) == 1


words = st.sampled_from(
    [
        "{",
        "}",
        "(",
        ")",
        "first: 3",
        "a",
        "...F",
        "fragment F on X",
        "query",
        "mutation",
        "$n",
        ":",
        '"',
        "# x\n",
        "on",
        "[",
        "1e9",
        "@x",
        "\\u00e9",
        '"""',
        "!",
    ]
)


@given(st.lists(words, max_size=40))
def test_any_query_text_has_a_cost(parts: list[str]) -> None:
    assert QueryCostCalculator(RULES).compute_body_cost(msgspec.json.encode({"query": " ".join(parts)})).cost >= 1


@given(st.binary(max_size=200))
def test_any_body_has_a_cost_or_is_refused(body: bytes) -> None:
    with contextlib.suppress(QueryTooComplex):
        assert QueryCostCalculator(RULES).compute_body_cost(body).cost >= 1


@pytest.mark.parametrize(
    ("field", "value", "text", "message"),
    [
        ("tokens_most", 3, "{ a b }", "more than 3 tokens"),
        ("depth_most", 2, "{ a { b { c } } }", "nested more than 2 levels"),
        ("depth_most", 3, "{ a(x: [[1]]) }", "nested more than 3 levels"),
        ("nodes_most", 9, "{ a(first: 10) }", "may return 10 nodes; at most 9"),
    ],
)
def test_a_query_one_step_beyond_a_limit_is_refused(field: str, value: int, text: str, message: str) -> None:
    strict, enough = (replace(GraphqlRules(), **{field: number}) for number in (value, value + 1))

    with pytest.raises(QueryTooComplex, match=message):
        QueryCostCalculator(strict).compute_query_cost(text)
    assert QueryCostCalculator(enough).compute_query_cost(text).cost == 1


def read_tokens(text: str) -> list[tuple[TokenKind, str | None]] | None:
    """Return the tokens of a query without the content of texts; `None` if it is malformed."""
    lexer = Lexer(Source(text))
    tokens: list[tuple[TokenKind, str | None]] = []
    texts = (TokenKind.STRING, TokenKind.BLOCK_STRING)
    try:
        while (token := lexer.advance()).kind is not TokenKind.EOF:
            tokens.append((token.kind, None if token.kind in texts else token.value))
    except GraphQLSyntaxError:
        return None
    return tokens


FRAGMENTS = [
    *(
        '"',
        '"',
        '"""',
        '"""',
        "\\",
        '\\"""',
        '\\"',
        "\\\\",
        "#",
        "\n",
        "\r",
        " ",
        ",",
        "\ufeff",
        "a",
        "{",
        "}",
        "(first: 5)",
        "12",
    ),
    *('"x"', '""', '"""x"""', '"""a " b"""', '"x""y"', "# it's", "\n#\n", '"# no comment"', '"""\n# no comment\n"""'),
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=30))
def test_a_compacted_query_has_the_same_tokens(parts: list[str]) -> None:
    text = "".join(parts)
    tokens = read_tokens(text)

    assert tokens is None or read_tokens(compact_query(text)) == tokens


def test_a_query_with_long_texts_and_comments_costs_what_it_costs_without() -> None:
    short = '{ a(first: 50, x: "y") { b(first: 90) { c(first: 80) } } }'
    long = "#x\n" * 5_000 + short.replace('"y"', '"' + "z" * 5_000 + '"').replace("{ b", '{ b # "\n')

    assert cost(long) == cost(short) == 46


def test_the_tokens_of_all_queries_of_a_body_count_together() -> None:
    calculator = QueryCostCalculator(replace(GraphqlRules(), tokens_most=8))

    assert calculator.compute_body_cost(msgspec.json.encode([{"query": "{a b}"}, {"query": "{c d}"}])).cost == 2
    with pytest.raises(QueryTooComplex, match="more than 8 tokens"):
        calculator.compute_body_cost(msgspec.json.encode([{"query": "{e f}"}, {"query": "{g h i}"}]))


@pytest.mark.parametrize(("count", "name", "is_refused"), [(20, None, False), (21, None, True), (21, "a3", False)])
def test_a_query_has_few_operations_or_names_one(count: int, name: str | None, is_refused: bool) -> None:
    text = "".join(f"query a{number} {{ b }} " for number in range(count))
    calculator = QueryCostCalculator(RULES)

    if is_refused:
        with pytest.raises(QueryTooComplex, match="21 operations"):
            calculator.compute_query_cost(text, {}, name)
    else:
        assert calculator.compute_query_cost(text, {}, name).cost == 1


def test_a_query_that_stays_long_without_texts_and_comments_is_refused() -> None:
    with pytest.raises(QueryTooComplex, match="more than 262144 characters"):
        cost("{" + "a" * MAX_COMPACTED_CHARACTERS + "}")


def test_fragments_are_nested_up_to_the_maximum_depth() -> None:
    def nest(count: int) -> str:
        parts = [f"fragment F{n} on X {{ ...F{n + 1} }}" for n in range(count - 1)]
        return "{ ...F0 } " + " ".join(parts) + f" fragment F{count - 1} on X {{ id }}"

    calculator = QueryCostCalculator(GraphqlRules(depth_most=3))

    assert calculator.compute_query_cost(nest(3)).cost == 1
    with pytest.raises(QueryTooComplex, match="Fragments are nested more than 3"):
        calculator.compute_query_cost(nest(4))


@pytest.mark.parametrize(("requests", "points"), [(49, 1), (149, 1), (150, 2), (249, 2), (250, 3)])
def test_the_cost_is_a_hundredth_of_the_requests_rounded_half_up(requests: int, points: int) -> None:
    fields = " ".join(f"f{number}: a(first: 1) {{ id }}" for number in range(requests))

    assert QueryCostCalculator(GraphqlRules()).compute_query_cost(f"{{ {fields} }}").cost == points


@pytest.mark.parametrize(
    ("page", "variables", "expected"),
    [
        ("first: 1", {}, 1),
        ("first: 100", {}, 100),
        ("first: 101", {}, 100),
        ("first: 0", {}, 100),
        ("last: 7", {}, 7),
        ("first: 3, last: 7", {}, 7),
        ("after: 3", {}, 0),
        ("first: $n", {"n": 1}, 1),
        ("first: $n", {"n": 0}, 100),
        ("first: $n", {"n": 100}, 100),
        ("first: $n", {"n": 101}, 100),
        ("first: $n", {"n": True}, 100),
        ("first: $d", {}, 20),
        ("first: $d", {"d": 30}, 30),
        ("first: $e", {}, 100),
    ],
)
def test_the_nodes_of_a_query_are_those_of_its_pages(page: str, variables: dict[str, object], expected: int) -> None:
    text = f"query($n: Int, $d: Int = 20, $e: Int = 1000) {{ a({page}) {{ b(first: 1) }} }}"
    nodes = 2 * expected or 1

    QueryCostCalculator(GraphqlRules(nodes_most=nodes)).compute_query_cost(text, variables)
    with pytest.raises(QueryTooComplex, match=f"may return {nodes} nodes"):
        QueryCostCalculator(GraphqlRules(nodes_most=nodes - 1)).compute_query_cost(text, variables)


def test_a_default_page_size_of_three_digits_is_read() -> None:
    text = "query($n: Int = 100) { a(first: $n) { b(first: 1) } }"

    with pytest.raises(QueryTooComplex, match="may return 200 nodes"):
        QueryCostCalculator(GraphqlRules(nodes_most=1)).compute_query_cost(text)


def test_all_queries_of_an_array_are_added_up() -> None:
    body = msgspec.json.encode([{"query": "mutation { addComment { id } x }"}, {"query": "{ a }"}])

    assert QueryCostCalculator(RULES).compute_body_cost(body) == QueryFacts(
        cost=2, points=6, content=1, has_mutations=True
    )


def test_an_array_of_the_maximum_length_is_accepted() -> None:
    body = msgspec.json.encode([{"query": "{a}"}] * 100)

    assert QueryCostCalculator(RULES).compute_body_cost(body).cost == 100


def test_a_body_of_the_maximum_length_is_accepted() -> None:
    body = b'{"query": "{a}"}'

    assert QueryCostCalculator(RULES).compute_body_cost(body + b" " * ((1 << 20) - len(body))).cost == 1


@pytest.mark.parametrize("depth", [1, 2, 3, 90])
def test_content_in_nested_fragments_is_counted(depth: int) -> None:
    parts = [f"fragment F{n} on M {{ ...F{n + 1} }}" for n in range(1, depth)]
    text = "mutation { ...F1 } " + " ".join(parts) + f" fragment F{depth} on M {{ addComment {{ id }} }}"

    assert QueryCostCalculator(RULES).compute_query_cost(text).content == 1


def test_content_of_fragments_that_are_used_exponentially_often_has_a_maximum() -> None:
    parts = [f"fragment F{n} on M {{ ...F{n + 1} ...F{n + 1} }}" for n in range(1, 90)]
    text = "mutation { ...F1 } " + " ".join(parts) + " fragment F90 on M { addComment { id } }"

    assert QueryCostCalculator(RULES).compute_query_cost(text).content == 1_000_000


def test_content_of_a_fragment_that_contains_itself_is_counted_once() -> None:
    text = "mutation { ...F } fragment F on M { addComment { id } ...G } fragment G on M { ...F }"

    assert QueryCostCalculator(RULES).compute_query_cost(text).content == 1


def test_an_operation_is_selected_by_its_name() -> None:
    text = "query A { a(first: 100) { b(first: 100) } } query B { c } query C { d(first: 1) }"
    costs = QueryCostCalculator(RULES)

    assert [costs.compute_query_cost(text, {}, name).cost for name in ("A", "B", "unknown", None)] == [1, 1, 1, 1]
    assert [
        costs.compute_query_cost("mutation A { addComment } query B { c }", {}, name).content
        for name in ("A", "B", "x")
    ] == [1, 0, 1]


def test_of_operations_that_a_service_could_run_the_highest_of_each_cost_is_charged() -> None:
    text = (
        "query A { a(first: 100) { b(first: 100) { c(first: 1) } } } mutation B { b } mutation C { addComment { id } }"
    )
    body = msgspec.json.encode({"query": text, "operationName": "C"})

    assert QueryCostCalculator(RULES).compute_body_cost(body, "B") == QueryFacts(
        cost=101, points=5, content=1, has_mutations=True
    )


def test_an_unknown_fragment_costs_nothing() -> None:
    assert QueryCostCalculator(RULES).compute_query_cost("mutation { ...Nothing }").content == 0


@pytest.mark.parametrize("limit", ["MAX_CACHED_QUERIES", "MAX_CACHED_QUERY_CHARACTERS"])
def test_queries_that_are_not_cached_have_the_same_cost(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(f"wharf.limits.core.graphql.{limit}", 1)
    costs = QueryCostCalculator(RULES)
    texts = ["query($n: Int) { r(first: $n) { i(first: 100) { l(first: 1) } } }", "mutation { addComment }"]

    assert [
        (facts.cost, facts.points)
        for _ in range(2)
        for text in texts
        for n in (2, 50)
        for facts in [costs.compute_query_cost(text, {"n": n})]
    ] == [(2, 1), (51, 1), (1, 5), (1, 5)] * 2


def test_of_several_operations_the_most_points_and_the_highest_cost_are_charged() -> None:
    large = "query A { " + " ".join(f"f{number}: a(first: 1) {{ id }}" for number in range(250)) + " }"

    facts = QueryCostCalculator(RULES).compute_query_cost(large + " mutation B { x } mutation C { addComment }")
    queries = QueryCostCalculator(RULES).compute_query_cost("query Z { a } " + large)

    assert (facts.points, facts.cost, queries.points, queries.cost) == (5, 3, 1, 3)


# -- queries in URLs -----------------------------------------------------------------------------------------------

PAGES = "{ a(first: $n) { b(first: 100) { id } c(first: 100) { id } } }"
NAMED = "query one { a } query two($n: Int) " + PAGES


def request_cost(url_query: str, body: dict[str, object] | None = None) -> int | str | None:
    """Return the cost of a request, or the beginning of the refusal."""
    encoded = None if body is None else msgspec.json.encode(body)
    try:
        facts = QueryCostCalculator(RULES).compute_request_cost(encoded, url_query)
    except QueryTooComplex as error:
        return str(error).partition(".")[0]
    return None if facts is None else facts.cost


def build_query(**parameters: str) -> str:
    return urlencode(parameters)


@pytest.mark.parametrize(
    ("url_query", "expected"),
    [
        ("", None),
        ("x=1", None),
        (build_query(extensions='{"persistedQuery": {"sha256Hash": "ab"}}'), None),
        (build_query(query="{ a }"), 1),
        (build_query(query=PAGES), 2),
        (build_query(query=PAGES, variables='{"n": 30}'), 1),
        (build_query(query=NAMED, operationName="one"), 1),
        (build_query(query=NAMED, operationName="two", variables='{"n": 100}'), 2),
        (build_query(query=PAGES, variables="no JSON"), 2),
        ("%71uery=" + build_query(x=PAGES)[2:], 2),
        (" query=" + build_query(x=PAGES)[2:], 2),
        ("x;query=" + build_query(x=PAGES)[2:], 2),
        ("query=%7Ba%7D&query=%7Ba%7D", 1),
        ("query=%7Ba%7D&query=%7Bb%7D", "The URL has several values of `query`"),
        ("query=%7Ba%7D;query=%7Bb%7D", "The URL has several values of `query`"),
        ("variables=1&variables=2", "The URL has several values of `variables`"),
        ("query=" + "a" * 70_000, "The URL has more than 65536 characters"),
        ("&".join("abcdefghij" * 10), None),
        ("&".join("abcdefghij" * 10) + "&k", "The URL has more than 100 parameters"),
        ("query=%ff%00", 1),
    ],
)
def test_a_query_in_a_url_costs_as_much_as_in_a_body(url_query: str, expected: int | str | None) -> None:
    assert request_cost(url_query) == expected


@pytest.mark.parametrize(
    ("url_query", "expected"),
    [
        ("", 1),
        ("x=1", 1),
        (build_query(operationName="one"), 1),
        (build_query(operationName="two"), 2),
        (build_query(query=PAGES), "The request has a body, and `query` in its URL"),
        (build_query(variables="{}"), "The request has a body, and `variables` in its URL"),
    ],
)
def test_body_and_url_cannot_contradict_each_other(url_query: str, expected: int | str) -> None:
    body: dict[str, object] = {"query": NAMED, "operationName": "one", "variables": {"n": 100}}

    assert request_cost(url_query, body) == expected
