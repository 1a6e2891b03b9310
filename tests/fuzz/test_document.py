"""Requests generated from the OpenAPI document: replies match the document, and none is a server error."""

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.agent.processes import RunningAgent, running
from tests.fuzz.rounds import DOCUMENTED_CODES, IS_FULL_RUN, SEED, STALE_READ_TEXT
from tests.fuzz.server_records import BOOTSTRAP, ITEM, NODE_SECRET, create_records
from wharf.contract.wire.endpoint_table import ENDPOINTS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import requests
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.core.failures import FailureGroup
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi import checks

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

EXAMPLES: Final = 30 if IS_FULL_RUN else 2
CONFORMANCE_CHECKS: Final = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
"""The checks of a reply against the document."""
TIMED_ENDPOINTS: Final = ("/v1/agent/pprof/profile", "/v1/agent/pprof/{profile}")
"""Endpoints with a requested duration."""
ENDLESS_ENDPOINTS: Final = frozenset(endpoint.path for endpoint in ENDPOINTS if endpoint.has_endless_reply)
LEADERSHIP_ENDING_ENDPOINTS: Final = (
    "/v1/agent/force-leave",
    "/v1/operator/raft/peer",
    "/v1/operator/raft/transfer-leadership",
)
"""Endpoints that end the leadership."""
REQUEST_TIMEOUT_S: Final = 60.0


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("document") / "a"
    folder.mkdir()
    (folder / "wharf.toml").write_text(
        f'data_dir = "{folder}/data"\n[ports]\nhttp = 0\n[server]\nenabled = true\n[acl]\nenabled = true\n'
    )
    with running(folder, "agent", "--config", str(folder / "wharf.toml")) as agent:
        agent.wait_ready()
        yield agent


def test_replies_match_the_openapi_document(agent: RunningAgent) -> None:
    asyncio.run(create_records(int(agent.address.rpartition(":")[2]), BOOTSTRAP))
    schema = schemathesis.openapi.from_url(f"{agent.address}/v1/openapi.json")
    problems: dict[str, str] = {}
    request_count = 0
    with requests.Session() as session:
        for result in schema.get_all_operations():
            assert isinstance(result, Ok), f"an operation of the document cannot be read: {result}"
            operation = result.ok()
            if operation.path in (*ENDLESS_ENDPOINTS, *TIMED_ENDPOINTS, *LEADERSHIP_ENDING_ENDPOINTS):
                continue

            @seed(SEED)
            @settings(
                max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def send(case: Any) -> None:
                nonlocal request_count
                request_count += 1
                check_reply(case, agent.address, session)

            try:
                send()
            except (Exception, FailureGroup) as error:
                problems[operation.label] = describe_error(error)
    print(f"\n{request_count} requests from the document, {len(problems)} operations with other replies")
    output = agent.err + agent.out + "".join(path.read_text() for path in agent.folder.rglob("*.log"))
    assert [secret for secret in (BOOTSTRAP, ITEM, NODE_SECRET) if secret in output] == []
    assert problems == {}, "\n\n".join(f"{label}: {problem}" for label, problem in problems.items())


def check_reply(case: Any, address: str, session: requests.Session) -> None:
    if case.query:
        case.query["wait"] = "5ms"
        case.query.pop("region", None)
    headers = {"X-Cluster-Token": BOOTSTRAP}
    reply = case.call(base_url=address, session=session, headers=headers, timeout=REQUEST_TIMEOUT_S)
    is_declared = reply.headers.get("x-cluster-error", [""])[0] in DOCUMENTED_CODES or STALE_READ_TEXT in reply.content
    if reply.status_code >= 500 and not is_declared:
        case.validate_response(reply, checks=[not_a_server_error])
    case.validate_response(reply, checks=CONFORMANCE_CHECKS)


def describe_error(error: BaseException) -> str:
    """Return the error text with the request that reproduces it."""
    if isinstance(error, FailureGroup):
        return "\n".join(str(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
