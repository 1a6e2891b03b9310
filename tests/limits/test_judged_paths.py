"""The gateway, both middlewares and the simulation judge the same path."""

from urllib.parse import unquote_to_bytes

from hypothesis import given
from hypothesis import strategies as st

from wharf.limits.core.paths import BadPath, normalize_decoded_path, normalize_path, read_segments
from wharf.limits.core.rule import PathRules
from wharf.limits.core.rulebook import Rulebook
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.simulation.access_log import AccessLogReader
from wharf.limits.wsgi import _normalize_path

RULES = PathRules()
BOOK = Rulebook(read_profile())
targets = st.lists(
    st.sampled_from(
        [*"aA/;.!,&=+(~", "..", "%2e", "%2F", "%5C", "%61", "%25", "%40", "%3F", "%20", "%C3%A9", "%ff", "%00", "%3b"]
    ),
    max_size=10,
).map(lambda parts: "/" + "".join(parts))


def judge_in_gateway(target: str) -> str:
    try:
        return normalize_path(target, RULES)
    except BadPath:
        return "refused"


def judge_in_asgi(target: str) -> str:
    """Return the path that the middleware judges for an application that uses the decoded path."""
    try:
        return normalize_decoded_path(unquote_to_bytes(target).decode("utf-8", "surrogateescape"), RULES)
    except BadPath:
        return "refused"


def judge_in_wsgi(target: str) -> str:
    try:
        return _normalize_path({"PATH_INFO": unquote_to_bytes(target).decode("latin-1")}, RULES)
    except BadPath:
        return "refused"


def judge_in_simulation(target: str) -> str:
    line = f'192.0.2.7 - - [21/Nov/2026:12:00:00 +0000] "GET {target} HTTP/1.1" 200 1\n'
    record = AccessLogReader().read_line(line.encode())
    assert record is not None
    try:
        return BOOK.normalize_path(record.path.encode())
    except BadPath:
        return "refused"


@given(targets)
def test_the_simulation_judges_what_the_gateway_judges(target: str) -> None:
    assert judge_in_simulation(target) == judge_in_gateway(target)


@given(targets)
def test_both_middlewares_judge_the_same_path(target: str) -> None:
    assert judge_in_wsgi(target) == judge_in_asgi(target)


@given(targets.filter(lambda target: "%2F" not in target))
def test_the_middlewares_judge_the_segments_that_the_gateway_judges(target: str) -> None:
    in_gateway, in_asgi = judge_in_gateway(target), judge_in_asgi(target)

    assert (in_asgi == "refused") == (in_gateway == "refused")
    assert read_segments(in_asgi) == read_segments(in_gateway)
