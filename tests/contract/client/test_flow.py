"""The flow of a call: requests, failover, retries and decoding of replies, without network and time."""

from typing import Any, Final

import pytest

from tests.contract.client.steps import ScriptedFlow, error_reply, no_reply, not_reached, ok_reply
from wharf.contract.client.bodies import encode_body
from wharf.contract.client.calls import CallSpec, ListSpec, ReadSpec
from wharf.contract.client.errors import (
    Conflict,
    NoLeader,
    NotFound,
    OutcomeUnknown,
    RateLimited,
    RequestRefused,
    UnexpectedReply,
)
from wharf.contract.client.flow import (
    NO_RETRIES,
    ClientDefaults,
    RetryPolicy,
    follow_changes,
    iterate_records,
    perform_call,
    send_request,
)
from wharf.contract.client.transport import ClientReply, ClientRequest, Unreachable
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.refusal import Refusal, RefusalCode

JOBS = "job.list"
JOB = b'{"ID": "web"}'


def list_spec(**options: Any) -> ListSpec[Any]:
    return ListSpec(options)  # type: ignore[arg-type]  # as the test says


def write_spec(**options: Any) -> CallSpec[Any]:
    return CallSpec(options, "web")  # type: ignore[arg-type]  # as the test says


# -- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job_id", "path"),
    [
        ("web", "/v1/job/web"),
        ("a/b", "/v1/job/a%2Fb"),
        ("a/summary", "/v1/job/a%2Fsummary"),
        ("a?b#c", "/v1/job/a%3Fb%23c"),
        ("é", "/v1/job/%C3%A9"),
    ],
)
def test_an_id_is_encoded_as_one_path_segment(job_id: str, path: str) -> None:
    flow = ScriptedFlow(ok_reply(JOB))

    flow.play(perform_call, "job.read", ReadSpec({}, job_id))

    assert [request.path for request in flow.requests] == [path]


def test_options_of_lists_become_the_query() -> None:
    flow = ScriptedFlow(ok_reply())
    options = {
        "filter": 'Status == "dead"', "prefix": "we", "per_page": 20, "next_token": "default.x", "reverse": True,
        "stale": True, "namespace": "*", "region": "north",
    }  # fmt: skip

    flow.play(perform_call, JOBS, ListSpec(options, meta=True))  # type: ignore[arg-type]  # as the test says

    assert flow.queries == [
        {
            "filter": 'Status == "dead"', "prefix": "we", "per_page": "20", "next_token": "default.x", "reverse": "true",
            "stale": "", "namespace": "*", "region": "north", "meta": "true",
        }
    ]  # fmt: skip


def test_client_defaults_apply_unless_a_call_sets_the_option() -> None:
    flow = ScriptedFlow(ok_reply(), ok_reply(), defaults=ClientDefaults(namespace="team", region="north"))

    flow.play(perform_call, JOBS, list_spec())
    flow.play(perform_call, JOBS, list_spec(namespace="*"))

    assert [query["namespace"] for query in flow.queries] == ["team", "*"]
    assert [query["region"] for query in flow.queries] == ["north", "north"]


def test_without_defaults_no_namespace_is_sent() -> None:
    flow = ScriptedFlow(ok_reply())

    flow.play(perform_call, JOBS, list_spec())

    assert flow.queries == [{}]


def test_the_timeout_is_longer_than_the_longest_wait() -> None:
    flow = ScriptedFlow(ok_reply(), ok_reply(), ok_reply())

    flow.play(perform_call, JOBS, list_spec(index=7, wait_s=160.0))
    flow.play(perform_call, JOBS, list_spec(index=7))
    flow.play(perform_call, JOBS, list_spec())

    assert flow.queries == [{"index": "7", "wait": "160000ms"}, {"index": "7"}, {}]
    waits_s = [160.0 * 17 / 16, 300.0 * 17 / 16, 0.0]
    assert [request.timeout_s > s for request, s in zip(flow.requests, waits_s, strict=True)] == [True] * 3
    assert flow.requests[2].timeout_s <= 60.0


def test_node_requests_carry_the_node_secret() -> None:
    flow = ScriptedFlow(ok_reply(b"{}"))

    flow.play(perform_call, "node.heartbeat", CallSpec({}, "n1", headers={"x-cluster-node-secret": "geheim"}))

    assert flow.requests[0].headers == {"x-cluster-node-secret": "geheim"}


# -- replies -------------------------------------------------------------------------------------------


def test_a_response_has_value_index_leader_contact_and_next_page_token() -> None:
    headers = {"x_cluster_index": "9", "x_cluster_knownleader": "false", "x_cluster_lastcontact": "12"}
    flow = ScriptedFlow(ok_reply(b"[]", **headers, x_cluster_nexttoken="default.b"))

    response = flow.play(perform_call, JOBS, list_spec())

    assert (response.value, response.index, response.is_leader_known, response.last_contact_ms) == ([], 9, False, 12)
    assert response.next_token == "default.b"


def test_a_response_without_headers_has_index_0() -> None:
    response = ScriptedFlow(ok_reply(b"[]", x_cluster_index="x")).play(perform_call, JOBS, list_spec())

    assert (response.index, response.is_leader_known, response.last_contact_ms, response.next_token) == (0, True, 0, "")


@pytest.mark.parametrize(
    ("status", "code", "error_type"),
    [
        (404, "", NotFound), (500, "no-leader", NoLeader), (409, "", Conflict), (429, "limited", RateLimited),
        (502, "", OutcomeUnknown),
    ],
)  # fmt: skip
def test_an_error_has_the_type_of_its_code_and_is_a_refusal(
    status: int, code: str, error_type: type[RequestRefused]
) -> None:
    with pytest.raises(error_type) as error:
        ScriptedFlow(error_reply(status, code, "so it is"), retries=NO_RETRIES).play(perform_call, JOBS, list_spec())

    assert isinstance(error.value, Refusal)
    assert (error.value.status, error.value.text) == (status, "so it is")


def test_every_code_has_an_error_type() -> None:
    from wharf.contract.client.errors import ERROR_TYPE_BY_CODE

    assert set(ERROR_TYPE_BY_CODE) == set(RefusalCode)
    assert len(set(ERROR_TYPE_BY_CODE.values())) == len(RefusalCode)


def test_an_error_with_an_empty_body_names_its_status() -> None:
    with pytest.raises(NotFound, match="status 404 with an empty body"):
        ScriptedFlow(error_reply(404, text="")).play(perform_call, JOBS, list_spec())


def test_declared_success_statuses_are_not_errors() -> None:
    body = b'{"Healthy": false, "FailureTolerance": 0, "Leader": "", "Voters": [], "Servers": []}'

    health = ScriptedFlow(ClientReply(429, {}, body)).play(perform_call, "operator.health", CallSpec({}))

    assert health.healthy is False


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"", b'[{"ID": 3}]'])
def test_an_undecodable_reply_raises_unexpected_reply_without_a_retry(body: bytes) -> None:
    flow = ScriptedFlow(ok_reply(body))

    with pytest.raises(UnexpectedReply):
        flow.play(perform_call, JOBS, list_spec())

    assert len(flow.requests) == 1


# -- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        no_reply(),
        not_reached(),
        error_reply(500, "no-leader"),
        error_reply(503),
        error_reply(504, "undecided"),
        error_reply(429),
    ],
)
def test_a_failed_read_is_retried(failure: Any) -> None:
    flow = ScriptedFlow(failure, ok_reply())

    assert flow.play(perform_call, JOBS, list_spec()).value == []
    assert len(flow.pauses_s) == 1


@pytest.mark.parametrize(
    "refusal", [error_reply(400), error_reply(403), error_reply(404), error_reply(409), error_reply(501, "not-ours")]
)
def test_permanent_errors_are_not_retried(refusal: Any) -> None:
    flow = ScriptedFlow(refusal)

    with pytest.raises(RequestRefused):
        flow.play(perform_call, JOBS, list_spec())

    assert flow.pauses_s == []


@pytest.mark.parametrize("failure", [no_reply(), error_reply(504, "undecided"), error_reply(503)])
def test_a_write_is_retried_with_the_same_idempotency_key(failure: Any) -> None:
    flow = ScriptedFlow(failure, ok_reply(b"{}"))

    flow.play(perform_call, "job.deregister", write_spec())

    keys = [request.headers["idempotency-key"] for request in flow.requests]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32


def test_without_retries_a_write_has_no_idempotency_key() -> None:
    flow = ScriptedFlow(no_reply(), retries=NO_RETRIES)

    with pytest.raises(Unreachable) as error:
        flow.play(perform_call, "job.deregister", write_spec())

    assert error.value.is_sent
    assert "idempotency-key" not in flow.requests[0].headers


def test_the_idempotency_key_of_the_caller_is_used() -> None:
    flow = ScriptedFlow(ok_reply(b"{}"))

    flow.play(perform_call, "job.deregister", write_spec(idempotency_key="mine"))

    assert flow.requests[0].headers["idempotency-key"] == "mine"


def test_two_writes_have_different_idempotency_keys() -> None:
    flow = ScriptedFlow(ok_reply(b"{}"), ok_reply(b"{}"))

    for _ in range(2):
        flow.play(perform_call, "job.deregister", write_spec())

    assert len({request.headers["idempotency-key"] for request in flow.requests}) == 2


def test_a_local_action_is_repeated_only_if_it_was_not_sent() -> None:
    flow = ScriptedFlow(not_reached(), no_reply())

    with pytest.raises(Unreachable, match="no reply"):
        flow.play(perform_call, "agent.reload", CallSpec({}))

    assert len(flow.requests) == 2


def test_pauses_double_up_to_the_maximum_and_are_random() -> None:
    flow = ScriptedFlow(
        *[error_reply(503)] * 7, retries=RetryPolicy(max_attempts=7, initial_pause_s=0.1, max_pause_s=1.0)
    )

    with pytest.raises(RequestRefused):
        flow.play(perform_call, JOBS, list_spec())

    limits_s = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [limit / 2 <= pause <= limit for pause, limit in zip(flow.pauses_s, limits_s, strict=True)] == [True] * 6


def test_retry_after_sets_the_shortest_pause_and_clients_are_spread_over_half_of_it() -> None:
    flow = ScriptedFlow(error_reply(429, "limited", retry_after="3"), ok_reply())

    flow.play(perform_call, JOBS, list_spec())

    (pause_s,) = flow.pauses_s
    assert 3.0 < pause_s <= 4.5


def test_there_is_no_retry_after_the_timeout() -> None:
    flow = ScriptedFlow(error_reply(429, "limited", retry_after="600"))

    with pytest.raises(RateLimited) as error:
        flow.play(perform_call, JOBS, list_spec())

    assert error.value.retry_after_s == 600.0
    assert flow.pauses_s == []


# -- several servers ---------------------------------------------------------------------------------------------------


def test_a_working_server_is_kept() -> None:
    flow = ScriptedFlow(ok_reply(), ok_reply(), ok_reply(), servers=2)

    for _ in range(3):
        flow.play(perform_call, JOBS, list_spec())

    assert flow.servers == [0, 0, 0]


def test_an_unsent_request_fails_over_at_once_and_the_new_server_is_kept() -> None:
    flow = ScriptedFlow(not_reached(), ok_reply(b"{}"), ok_reply(b"{}"), servers=2)

    flow.play(perform_call, "job.deregister", write_spec())
    flow.play(perform_call, "job.deregister", write_spec())

    assert (flow.servers, flow.pauses_s) == ([0, 1, 1], [])


def test_all_servers_are_tried_before_a_pause() -> None:
    flow = ScriptedFlow(not_reached(), not_reached(), not_reached(), servers=3, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="nobody listens"):
        flow.play(perform_call, JOBS, list_spec())

    assert (flow.servers, flow.pauses_s) == ([0, 1, 2], [])


@pytest.mark.parametrize("failure", [error_reply(503), error_reply(500, "no-leader"), no_reply()])
def test_a_failing_server_is_replaced_by_the_next(failure: Any) -> None:
    flow = ScriptedFlow(failure, ok_reply(), servers=2)

    flow.play(perform_call, JOBS, list_spec())

    assert flow.servers == [0, 1]


def test_an_uncertain_write_is_not_retried_and_the_next_write_uses_another_server() -> None:
    flow = ScriptedFlow(no_reply(), ok_reply(b"{}"), servers=2, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="no reply"):
        flow.play(perform_call, "job.deregister", write_spec())
    flow.play(perform_call, "job.deregister", write_spec())

    assert flow.servers == [0, 1]


def test_a_raw_request_returns_any_reply_unchanged() -> None:
    flow = ScriptedFlow(not_reached(), error_reply(404, text="job not found"), servers=2)

    reply = flow.play(lambda state, _, __: send_request(state, ClientRequest("GET", "/v1/job/x")), JOBS, list_spec())

    assert (reply.status, reply.body, flow.servers) == (404, b"job not found", [0, 1])


def test_a_raw_write_is_sent_to_no_second_server_after_a_lost_reply() -> None:
    flow = ScriptedFlow(no_reply(), ok_reply(JOB), servers=2)

    with pytest.raises(Unreachable):
        flow.play(lambda state, _, __: send_request(state, ClientRequest("PUT", "/v1/jobs")), JOBS, list_spec())

    assert len(flow.requests) == 1


def test_a_raw_write_tries_the_next_server_if_the_first_was_not_reached() -> None:
    flow = ScriptedFlow(not_reached(), ok_reply(JOB), servers=2)

    reply = flow.play(lambda state, _, __: send_request(state, ClientRequest("PUT", "/v1/jobs")), JOBS, list_spec())

    assert (reply.status, len(flow.requests)) == (200, 2)


RAW_READ = ClientRequest("GET", "/v1/operator/autopilot/health")
NO_LEADER_REPLY = error_reply(500, "no-leader", "No cluster leader")


def play_raw(flow: ScriptedFlow, request: ClientRequest) -> Any:
    """Send a request without an endpoint, and return the reply."""
    return flow.play(lambda state, _, __: send_request(state, request), JOBS, list_spec())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("failure", [no_reply(), NO_LEADER_REPLY, error_reply(503, "unavailable")])
def test_a_raw_read_tries_the_next_server_after_a_failure(method: str, failure: Any) -> None:
    flow = ScriptedFlow(failure, ok_reply(), servers=2)

    reply = play_raw(flow, ClientRequest(method, "/v1/jobs"))

    assert (reply.status, flow.servers) == (200, [0, 1])


def test_a_raw_read_leaves_time_for_the_other_servers() -> None:
    flow = ScriptedFlow(no_reply(), ok_reply(), servers=3)

    play_raw(flow, RAW_READ)

    assert [request.timeout_s for request in flow.requests] == [2.5, 2.5]


@pytest.mark.parametrize("status", [404, 429, 500])
def test_a_raw_read_returns_an_error_reply_that_is_the_result_of_its_endpoint(status: int) -> None:
    flow = ScriptedFlow(error_reply(status), ok_reply(), servers=2)

    reply = play_raw(flow, RAW_READ)

    assert (reply.status, flow.servers) == (status, [0])


def test_a_raw_read_without_a_good_reply_returns_the_refusal_of_the_server_that_sent_one() -> None:
    flow = ScriptedFlow(NO_LEADER_REPLY, no_reply(), servers=2)

    assert play_raw(flow, RAW_READ) == NO_LEADER_REPLY


def test_a_raw_read_without_a_reply_names_all_servers_and_is_a_read() -> None:
    flow = ScriptedFlow(not_reached(), no_reply(), servers=2)

    with pytest.raises(Unreachable, match="nobody listens; no reply came") as failed:
        play_raw(flow, RAW_READ)

    assert failed.value.is_read


def test_a_raw_write_without_a_leader_is_sent_once() -> None:
    flow = ScriptedFlow(NO_LEADER_REPLY, ok_reply(), servers=2)

    reply = play_raw(flow, ClientRequest("PUT", "/v1/jobs"))

    assert (reply, flow.servers) == (NO_LEADER_REPLY, [0])


def test_each_server_gets_a_part_of_the_time_of_a_call_and_the_last_one_the_rest() -> None:
    flow = ScriptedFlow(no_reply(), no_reply(), ok_reply(), servers=3, retries=NO_RETRIES)

    flow.play(perform_call, JOBS, list_spec(timeout_s=10.0))

    assert flow.servers == [0, 1, 2]
    assert [request.timeout_s for request in flow.requests] == [2.5, 2.5, 10.0]  # Replies are lost at once here.
    assert flow.pauses_s == []


def test_a_missed_reply_moves_all_later_calls_to_another_server() -> None:
    flow = ScriptedFlow(no_reply(), ok_reply(), ok_reply(), servers=2, retries=NO_RETRIES)

    for _ in range(2):
        flow.play(perform_call, JOBS, list_spec())

    assert flow.servers == [0, 1, 1]


def test_a_write_that_cannot_be_repeated_gets_the_whole_time_for_its_reply_and_a_part_for_its_connection() -> None:
    flow = ScriptedFlow(ok_reply(b"{}"), servers=2, retries=NO_RETRIES)

    flow.play(perform_call, "job.deregister", write_spec())

    assert (flow.requests[0].timeout_s, flow.requests[0].connect_timeout_s) == (30.0, 2.5)


def test_a_blocking_query_keeps_its_timeout_and_ends_when_its_server_is_silent() -> None:
    flow = ScriptedFlow(ok_reply(x_cluster_index="9"), servers=2)

    flow.play(perform_call, JOBS, list_spec(index=7, wait_s=60.0))

    (request,) = flow.requests
    assert (request.timeout_s, request.connect_timeout_s, request.is_long_running) == (93.75, 2.5, True)
    assert flow.watched_silence == [True]


def test_a_call_ends_when_all_servers_are_silent() -> None:
    flow = ScriptedFlow(no_reply(), no_reply(), servers=2, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="no reply came"):
        flow.play(perform_call, JOBS, list_spec())

    assert flow.servers == [0, 1]


# -- following ---------------------------------------------------------------------------------------------------------


def test_following_yields_each_new_response_and_waits_from_its_index() -> None:
    flow = ScriptedFlow(ok_reply(x_cluster_index="5"), ok_reply(x_cluster_index="5"), ok_reply(x_cluster_index="8"))

    flow.play(follow_changes, JOBS, list_spec(), value_count=2)

    assert [response.index for response in flow.values] == [5, 8]
    assert [query.get("index") for query in flow.queries] == [None, "5", "5"]


def test_following_never_sends_index_0() -> None:
    flow = ScriptedFlow(ok_reply(x_cluster_index="0"), ok_reply(x_cluster_index="3"))

    flow.play(follow_changes, JOBS, list_spec(), value_count=1)

    assert [query.get("index") for query in flow.queries] == [None, "1"]


def test_following_continues_from_a_decreased_index() -> None:
    flow = ScriptedFlow(ok_reply(x_cluster_index="90"), ok_reply(x_cluster_index="4"), ok_reply(x_cluster_index="6"))

    flow.play(follow_changes, JOBS, list_spec(), value_count=3)

    assert [response.index for response in flow.values] == [90, 4, 6]
    assert [query.get("index") for query in flow.queries] == [None, "90", "4"]


def test_following_waits_out_any_outage() -> None:
    flow = ScriptedFlow(
        ok_reply(x_cluster_index="5"),
        *[not_reached()] * 30,
        error_reply(500, "no-leader"),
        ok_reply(x_cluster_index="6"),
    )

    flow.play(follow_changes, JOBS, list_spec(), value_count=2)

    assert [response.index for response in flow.values] == [5, 6]
    assert max(flow.pauses_s) <= 5.0


def test_following_ends_after_the_longest_outage() -> None:
    retries = RetryPolicy(max_attempts=1, max_outage_s=60.0)
    flow = ScriptedFlow(ok_reply(x_cluster_index="5"), *[not_reached()] * 90, retries=retries)

    with pytest.raises(Unreachable, match="nobody listens"):
        flow.play(follow_changes, JOBS, list_spec(), value_count=2)

    assert 60.0 <= flow.now_s < 66.0


def test_following_pauses_if_a_server_does_not_block() -> None:
    flow = ScriptedFlow(*[ok_reply(x_cluster_index="5")] * 4, ok_reply(x_cluster_index="6"))

    flow.play(follow_changes, JOBS, list_spec(), value_count=2)

    assert len(flow.pauses_s) == 3
    assert flow.pauses_s == sorted(flow.pauses_s)


def test_following_obeys_retry_after() -> None:
    flow = ScriptedFlow(error_reply(429, "limited", retry_after="600"), ok_reply(x_cluster_index="6"))

    flow.play(follow_changes, JOBS, list_spec(), value_count=1)

    (pause_s,) = flow.pauses_s
    assert 600.0 < pause_s <= 900.0


def test_following_ends_at_a_permanent_error() -> None:
    with pytest.raises(NotFound):
        ScriptedFlow(ok_reply(JOB, x_cluster_index="5"), error_reply(404)).play(
            follow_changes, "job.read", ReadSpec({}, "web")
        )


# -- pages -------------------------------------------------------------------------------------------------------------


def test_all_records_of_a_list_are_fetched_page_by_page() -> None:
    first = ok_reply(b'[{"ID": "a"}, {"ID": "b"}]', x_cluster_nexttoken="default.c")
    flow = ScriptedFlow(first, ok_reply(b'[{"ID": "c"}]'))

    flow.play(iterate_records, JOBS, list_spec(per_page=2))

    assert [job.id for job in flow.values] == ["a", "b", "c"]
    assert flow.queries == [{"per_page": "2"}, {"per_page": "2", "next_token": "default.c"}]


# -- which failure explains most


def silent(name: str) -> Unreachable:
    return Unreachable(f"no reply from {name}", is_sent=True, is_silent=True)


STORE_LOST: Final = error_reply(
    500, "no-leader", "No cluster leader: the store is away", x_cluster_error_reason="store-unreachable"
)


def test_the_error_of_a_call_is_an_unreachable_store_if_one_server_reports_it_and_others_do_not_reply() -> None:
    driver = ScriptedFlow(silent("a"), STORE_LOST, silent("c"), servers=3, retries=RetryPolicy(max_attempts=1))

    with pytest.raises(NoLeader, match="the store is away") as caught:
        driver.play(perform_call, JOBS, list_spec())

    assert [str(each) for each in caught.value.other_failures] == ["no reply from a"]


def test_a_later_silence_of_a_server_does_not_hide_that_it_cannot_reach_its_store() -> None:
    driver = ScriptedFlow(STORE_LOST, silent("a"), retries=RetryPolicy(max_attempts=2))

    with pytest.raises(NoLeader, match="the store is away"):
        driver.play(perform_call, JOBS, list_spec())


def test_a_call_ends_when_the_store_was_unreachable_for_the_limit_of_the_policy() -> None:
    policy = RetryPolicy(max_attempts=9, initial_pause_s=3.0, max_pause_s=3.0, max_store_outage_s=5.0)
    driver = ScriptedFlow(*[STORE_LOST] * 9, retries=policy)

    with pytest.raises(NoLeader):
        driver.play(perform_call, JOBS, list_spec())

    assert sum(driver.pauses_s[:-1]) < 5.0 <= sum(driver.pauses_s)


def test_the_error_names_all_servers_if_none_replies() -> None:
    driver = ScriptedFlow(not_reached(), silent("b"), servers=2, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="nobody listens; no reply from b") as caught:
        driver.play(perform_call, JOBS, list_spec())

    assert (caught.value.is_sent, caught.value.is_silent) == (True, True)


# -- bodies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_body_with_a_number_that_json_does_not_have_is_not_sent(number: float) -> None:
    flow = ScriptedFlow(ok_reply(JOB))
    spec: CallSpec[Any] = CallSpec({}, body={"Job": {"ID": "web", "TaskGroups": [{"Count": number}]}})

    with pytest.raises(ValueError, match=rf"^Job\.TaskGroups\[0\]\.Count: {number} is not a finite number$"):
        flow.play(perform_call, "job.register", spec)
    assert flow.requests == []


def test_a_record_with_a_driver_option_that_json_does_not_have_is_not_sent() -> None:
    job = Job(id="web", task_groups=(TaskGroup(name="g", tasks=(Task(name="t", config={"x": float("nan")}),)),))

    with pytest.raises(ValueError, match=r"^TaskGroups\[0\]\.Tasks\[0\]\.Config\.x: nan is not a finite number$"):
        encode_body(job)


def test_a_body_with_empty_fields_is_sent() -> None:
    assert encode_body({"Job": None, "Rate": 0.5}) == b'{"Job":null,"Rate":0.5}'
