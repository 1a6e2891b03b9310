"""What the client sends, to whom, when again, and what it makes of replies; without a socket and without time."""

from typing import Any

import pytest

from tests.contract.client.steps import Played, no, nobody, ok, silence
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
    send_once,
)
from wharf.contract.client.transport import ClientReply, ClientRequest, Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode

JOBS = "job.list"
JOB = b'{"ID": "web"}'


def a_list(**options: Any) -> ListSpec[Any]:
    return ListSpec(options)  # type: ignore[arg-type]  # as the test says


def a_write(**options: Any) -> CallSpec[Any]:
    return CallSpec(options, "web")  # type: ignore[arg-type]  # as the test says


# -- what is sent ------------------------------------------------------------------------------------------------------


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
def test_an_id_is_one_part_of_the_path_whatever_it_holds(job_id: str, path: str) -> None:
    played = Played(ok(JOB))

    played.play(perform_call, "job.read", ReadSpec({}, job_id))

    assert [request.path for request in played.requests] == [path]


def test_options_of_lists_become_the_query() -> None:
    played = Played(ok())
    options = {
        "filter": 'Status == "dead"', "prefix": "we", "per_page": 20, "next_token": "default.x", "reverse": True,
        "stale": True, "namespace": "*", "region": "north",
    }  # fmt: skip

    played.play(perform_call, JOBS, ListSpec(options, meta=True))  # type: ignore[arg-type]  # as the test says

    assert played.queries == [
        {
            "filter": 'Status == "dead"', "prefix": "we", "per_page": "20", "next_token": "default.x", "reverse": "true",
            "stale": "", "namespace": "*", "region": "north", "meta": "true",
        }
    ]  # fmt: skip


def test_what_the_client_was_made_with_counts_where_a_call_does_not_say_otherwise() -> None:
    played = Played(ok(), ok(), defaults=ClientDefaults(namespace="team", region="north"))

    played.play(perform_call, JOBS, a_list())
    played.play(perform_call, JOBS, a_list(namespace="*"))

    assert [query["namespace"] for query in played.queries] == ["team", "*"]
    assert [query["region"] for query in played.queries] == ["north", "north"]


def test_a_client_that_knows_of_no_namespace_names_none() -> None:
    played = Played(ok())

    played.play(perform_call, JOBS, a_list())

    assert played.queries == [{}]


def test_the_reply_has_more_time_than_the_longest_wait() -> None:
    played = Played(ok(), ok(), ok())

    played.play(perform_call, JOBS, a_list(index=7, wait_s=160.0))
    played.play(perform_call, JOBS, a_list(index=7))
    played.play(perform_call, JOBS, a_list())

    assert played.queries == [{"index": "7", "wait": "160000ms"}, {"index": "7"}, {}]
    waits_s = [160.0 * 17 / 16, 300.0 * 17 / 16, 0.0]
    assert [request.timeout_s > s for request, s in zip(played.requests, waits_s, strict=True)] == [True] * 3
    assert played.requests[2].timeout_s <= 60.0


def test_what_a_node_says_carries_its_secret() -> None:
    played = Played(ok(b"{}"))

    played.play(perform_call, "node.heartbeat", CallSpec({}, "n1", headers={"x-cluster-node-secret": "geheim"}))

    assert played.requests[0].headers == {"x-cluster-node-secret": "geheim"}


# -- what is made of replies -------------------------------------------------------------------------------------------


def test_an_answer_carries_value_index_leader_contact_and_the_next_page() -> None:
    headers = {"x_cluster_index": "9", "x_cluster_knownleader": "false", "x_cluster_lastcontact": "12"}
    played = Played(ok(b"[]", **headers, x_cluster_nexttoken="default.b"))

    answer = played.play(perform_call, JOBS, a_list())

    assert (answer.value, answer.index, answer.is_leader_known, answer.last_contact_ms) == ([], 9, False, 12)
    assert answer.next_token == "default.b"


def test_an_answer_without_headers_has_index_0() -> None:
    answer = Played(ok(b"[]", x_cluster_index="x")).play(perform_call, JOBS, a_list())

    assert (answer.index, answer.is_leader_known, answer.last_contact_ms, answer.next_token) == (0, True, 0, "")


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "", NotFound), (500, "no-leader", NoLeader), (409, "", Conflict), (429, "limited", RateLimited),
        (502, "", OutcomeUnknown),
    ],
)  # fmt: skip
def test_a_refusal_has_a_type_for_its_code_and_is_a_refusal(status: int, code: str, kind: type[RequestRefused]) -> None:
    with pytest.raises(kind) as told:
        Played(no(status, code, "so it is"), retries=NO_RETRIES).play(perform_call, JOBS, a_list())

    assert isinstance(told.value, Refusal)
    assert (told.value.status, told.value.text) == (status, "so it is")


def test_every_code_has_its_type() -> None:
    from wharf.contract.client.errors import ERROR_TYPE_BY_CODE

    assert set(ERROR_TYPE_BY_CODE) == set(RefusalCode)
    assert len(set(ERROR_TYPE_BY_CODE.values())) == len(RefusalCode)


def test_a_refusal_without_a_word_names_its_status() -> None:
    with pytest.raises(NotFound, match="status 404 without a word"):
        Played(no(404, text="")).play(perform_call, JOBS, a_list())


def test_a_status_that_tells_something_is_no_refusal_where_the_row_says_so() -> None:
    body = b'{"Healthy": false, "FailureTolerance": 0, "Leader": "", "Voters": [], "Servers": []}'

    health = Played(ClientReply(429, {}, body)).play(perform_call, "operator.health", CallSpec({}))

    assert health.healthy is False


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"", b'[{"ID": 3}]'])
def test_a_reply_that_makes_no_sense_is_no_error_of_a_library_and_not_asked_for_again(body: bytes) -> None:
    played = Played(ok(body))

    with pytest.raises(UnexpectedReply):
        played.play(perform_call, JOBS, a_list())

    assert len(played.requests) == 1


# -- once more ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [silence(), nobody(), no(500, "no-leader"), no(503), no(504, "undecided"), no(429)])
def test_a_read_is_asked_again(trouble: Any) -> None:
    played = Played(trouble, ok())

    assert played.play(perform_call, JOBS, a_list()).value == []
    assert len(played.pauses_s) == 1


@pytest.mark.parametrize("refusal", [no(400), no(403), no(404), no(409), no(501, "not-ours")])
def test_what_will_be_refused_again_is_asked_once(refusal: Any) -> None:
    played = Played(refusal)

    with pytest.raises(RequestRefused):
        played.play(perform_call, JOBS, a_list())

    assert played.pauses_s == []


@pytest.mark.parametrize("trouble", [silence(), no(504, "undecided"), no(503)])
def test_a_write_is_sent_again_with_the_key_that_it_had_the_first_time(trouble: Any) -> None:
    played = Played(trouble, ok(b"{}"))

    played.play(perform_call, "job.deregister", a_write())

    keys = [request.headers["idempotency-key"] for request in played.requests]
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32


def test_a_write_whose_client_tries_once_has_no_key_and_may_have_happened() -> None:
    played = Played(silence(), retries=NO_RETRIES)

    with pytest.raises(Unreachable) as told:
        played.play(perform_call, "job.deregister", a_write())

    assert told.value.is_sent
    assert "idempotency-key" not in played.requests[0].headers


def test_the_callers_own_key_is_used() -> None:
    played = Played(ok(b"{}"))

    played.play(perform_call, "job.deregister", a_write(idempotency_key="mine"))

    assert played.requests[0].headers["idempotency-key"] == "mine"


def test_two_writes_have_two_keys() -> None:
    played = Played(ok(b"{}"), ok(b"{}"))

    for _ in range(2):
        played.play(perform_call, "job.deregister", a_write())

    assert len({request.headers["idempotency-key"] for request in played.requests}) == 2


def test_what_acts_on_one_process_is_not_sent_twice_unless_nobody_heard_it() -> None:
    played = Played(nobody(), silence())

    with pytest.raises(Unreachable, match="no reply"):
        played.play(perform_call, "agent.reload", CallSpec({}))

    assert len(played.requests) == 2


def test_pauses_grow_up_to_their_bound_and_are_never_the_same_for_all() -> None:
    played = Played(*[no(503)] * 7, retries=RetryPolicy(max_attempts=7, initial_pause_s=0.1, max_pause_s=1.0))

    with pytest.raises(RequestRefused):
        played.play(perform_call, JOBS, a_list())

    bounds_s = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert [bound / 2 <= pause <= bound for pause, bound in zip(played.pauses_s, bounds_s, strict=True)] == [True] * 6


def test_a_server_that_says_how_long_is_left_alone_for_so_long() -> None:
    played = Played(no(429, "limited", retry_after="3"), ok())

    played.play(perform_call, JOBS, a_list())

    assert played.pauses_s == [3.0]


def test_nothing_is_asked_again_after_the_time_that_one_try_has() -> None:
    played = Played(no(429, "limited", retry_after="600"))

    with pytest.raises(RateLimited) as told:
        played.play(perform_call, JOBS, a_list())

    assert told.value.retry_after_s == 600.0
    assert played.pauses_s == []


# -- several servers ---------------------------------------------------------------------------------------------------


def test_one_server_is_used_for_as_long_as_it_serves() -> None:
    played = Played(ok(), ok(), ok(), servers=2)

    for _ in range(3):
        played.play(perform_call, JOBS, a_list())

    assert played.servers == [0, 0, 0]


def test_a_request_that_reached_nobody_goes_to_the_next_server_at_once_which_is_kept() -> None:
    played = Played(nobody(), ok(b"{}"), ok(b"{}"), servers=2)

    played.play(perform_call, "job.deregister", a_write())
    played.play(perform_call, "job.deregister", a_write())

    assert (played.servers, played.pauses_s) == ([0, 1, 1], [])


def test_where_nobody_is_there_each_is_asked_before_anybody_waits() -> None:
    played = Played(nobody(), nobody(), nobody(), servers=3, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="nobody listens"):
        played.play(perform_call, JOBS, a_list())

    assert (played.servers, played.pauses_s) == ([0, 1, 2], [])


@pytest.mark.parametrize("trouble", [no(503), no(500, "no-leader"), silence()])
def test_a_server_that_cannot_serve_is_left(trouble: Any) -> None:
    played = Played(trouble, ok(), servers=2)

    played.play(perform_call, JOBS, a_list())

    assert played.servers == [0, 1]


def test_a_write_without_a_key_that_may_have_been_heard_is_not_sent_again_and_the_next_one_goes_elsewhere() -> None:
    played = Played(silence(), ok(b"{}"), servers=2, retries=NO_RETRIES)

    with pytest.raises(Unreachable, match="no reply"):
        played.play(perform_call, "job.deregister", a_write())
    played.play(perform_call, "job.deregister", a_write())

    assert played.servers == [0, 1]


def test_any_request_may_be_sent_and_what_is_answered_comes_back_as_it_is() -> None:
    played = Played(nobody(), no(404, text="job not found"), servers=2)

    reply = played.play(lambda standing, _, __: send_once(standing, ClientRequest("GET", "/v1/job/x")), JOBS, a_list())

    assert (reply.status, reply.body, played.servers) == (404, b"job not found", [0, 1])


# -- following ---------------------------------------------------------------------------------------------------------


def test_following_gives_each_new_answer_and_asks_from_its_index() -> None:
    played = Played(ok(x_cluster_index="5"), ok(x_cluster_index="5"), ok(x_cluster_index="8"))

    played.play(follow_changes, JOBS, a_list(), until_given=2)

    assert [answer.index for answer in played.given] == [5, 8]
    assert [query.get("index") for query in played.queries] == [None, "5", "5"]


def test_following_never_asks_with_an_index_of_0_twice() -> None:
    played = Played(ok(x_cluster_index="0"), ok(x_cluster_index="3"))

    played.play(follow_changes, JOBS, a_list(), until_given=1)

    assert [query.get("index") for query in played.queries] == [None, "1"]


def test_an_index_that_goes_back_is_followed_from_there() -> None:
    played = Played(ok(x_cluster_index="90"), ok(x_cluster_index="4"), ok(x_cluster_index="6"))

    played.play(follow_changes, JOBS, a_list(), until_given=3)

    assert [answer.index for answer in played.given] == [90, 4, 6]
    assert [query.get("index") for query in played.queries] == [None, "90", "4"]


def test_following_waits_out_an_outage_however_long() -> None:
    played = Played(ok(x_cluster_index="5"), *[nobody()] * 30, no(500, "no-leader"), ok(x_cluster_index="6"))

    played.play(follow_changes, JOBS, a_list(), until_given=2)

    assert [answer.index for answer in played.given] == [5, 6]
    assert max(played.pauses_s) <= 5.0


def test_who_answers_at_once_that_nothing_changed_is_not_asked_without_a_pause() -> None:
    played = Played(*[ok(x_cluster_index="5")] * 4, ok(x_cluster_index="6"))

    played.play(follow_changes, JOBS, a_list(), until_given=2)

    assert len(played.pauses_s) == 3
    assert played.pauses_s == sorted(played.pauses_s)


def test_following_leaves_a_server_alone_for_as_long_as_it_wants() -> None:
    played = Played(no(429, "limited", retry_after="600"), ok(x_cluster_index="6"))

    played.play(follow_changes, JOBS, a_list(), until_given=1)

    assert played.pauses_s == [600.0]


def test_following_ends_where_the_servers_say_no() -> None:
    with pytest.raises(NotFound):
        Played(ok(JOB, x_cluster_index="5"), no(404)).play(follow_changes, "job.read", ReadSpec({}, "web"))


# -- pages -------------------------------------------------------------------------------------------------------------


def test_all_records_of_a_list_come_page_by_page() -> None:
    first = ok(b'[{"ID": "a"}, {"ID": "b"}]', x_cluster_nexttoken="default.c")
    played = Played(first, ok(b'[{"ID": "c"}]'))

    played.play(iterate_records, JOBS, a_list(per_page=2))

    assert [job.id for job in played.given] == ["a", "b", "c"]
    assert played.queries == [{"per_page": "2"}, {"per_page": "2", "next_token": "default.c"}]
