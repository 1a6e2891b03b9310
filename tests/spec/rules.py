"""The rules of the specification of the HTTP API, by section and short name. A test in this folder names each of them.

Definitions of terms are not rules.
"""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

RULES = {
    "service": {
        "json": "Bodies that the API returns are JSON.",
        "minimized": "The JSON is minimized by default.",
        "port": "The default port is 4646, and it can be changed.",
        "prefix": "Every route starts with /v1/.",
        "methods": "The same path with different methods performs different operations.",
        "verbs": "The API uses GET, PUT and DELETE.",
    },
    "resources": {
        "job": "An element of the list of jobs has these fields, of these types.",
        "summary": "A summary counts children, and allocations of each group by their states.",
        "deployment": "An element of the list of deployments has these fields, of these types.",
        "group-state": "The state of a group in a deployment has these fields.",
        "parent": "ParentID is empty when the job has no parent.",
        "multiregion": "Multiregion is null or an object.",
        "progress": "RequireProgressBy is null or a time in ISO 8601 with its offset.",
        "zero-times": "A time that does not apply is null, and never the beginning of the calendar.",
        "indexes": "Fields named ...Index are integer counters of changes of the state.",
    },
    "states": {
        "job": "A job's status is pending or running; its description is empty.",
        "deployment": "A deployment may be cancelled or successful, with a text that has the reason.",
        "stop": "A job also has the boolean Stop.",
        "texts": "The text of a cancelled deployment mentions a newer version, that of a successful one its completion.",
    },
    "endpoints": {
        "members": "GET /v1/agent/members lists the members that the agent sees.",
        "jobs": "GET /v1/jobs lists all jobs, with a filter if one is given.",
        "create": "PUT /v1/jobs creates a job.",
        "deployments": "GET /v1/deployments lists deployments, with a filter if one is given.",
    },
    "parameters": {
        "namespace": "namespace selects the namespace; it is required unless that is the default namespace.",
        "segments": "Namespaces segment jobs and their associated objects from each other.",
        "region": "region selects the region; by default it is the agent's own.",
        "forwarded": "A request for another region is forwarded to a server of that region, also if it waits or streams.",
        "per-page": "per_page is a positive integer.",
        "wait": "wait is a duration such as 10s or 5m.",
        "index": "index is an integer.",
        "flags": "stale and pretty are flags: they need no value.",
        "pretty": "pretty gives indented JSON.",
        "gzip": "If Accept-Encoding contains gzip, the response is compressed with it.",
        "reverse": "reverse=true reverses the order.",
    },
    "headers": {
        "index": "X-Cluster-Index identifies the state, and starts at 1 on a new cluster.",
        "nexttoken": "X-Cluster-Nexttoken is present on all pages except the last.",
        "lastcontact": "X-Cluster-LastContact is a time in milliseconds, on reads.",
        "knownleader": "X-Cluster-KnownLeader reports whether a leader is known, on reads.",
    },
    "filtering": {
        "equality": "== and != compare.",
        "emptiness": "is empty and is not empty check the number of elements.",
        "containment": "in, not in, contains and not contains search for an element, a key or a part of a text.",
        "patterns": "matches and not matches take a regular expression.",
        "selectors": "A selector is names joined by dots; a name begins with a letter.",
        "map-keys": 'A key of a map may be selected by ["key"].',
        "values": "A value is a bare word, a number, or a text in quotes or backticks; the latter is raw.",
        "precedence": "not has a higher precedence than and, and and than or; parentheses group.",
        "whitespace": "White space is significant only inside texts.",
        "whole-object": "A match inside an inner array returns the whole object.",
        "with-others": "A filter together with another filtering parameter is a 400.",
        "on-the-leader": "A filter of a query that is not stale uses the state of the leader.",
        "selectors-that-occur": "Datacenters on jobs, Status and TaskGroups.<group> on deployments.",
    },
    "paging": {
        "split": "per_page splits the result into pages of that size.",
        "token": "next_token with the header's value gives the next page.",
        "last": "On the last page the header is absent.",
        "order": "Lists are ascending by key or by creation; reverse=true reverses them where supported.",
    },
    "blocking": {
        "waits": "A request with an index waits for a change or the end of its wait time.",
        "no-guarantee": "A reply does not mean that something changed: the wait time may have passed.",
        "idempotent": "A write that ends the wait need not have changed the result.",
        "bounds": "The wait is 5 minutes by default and 10 at most.",
        "jitter": "Up to a sixteenth of the wait is added.",
    },
    "consistency": {
        "default": "A default read sees every write that was acknowledged before it.",
        "default-leader": "A default read needs a leader.",
        "reads-only": "The modes apply to reads: stale does not change a write.",
        "stale-any": "A stale read is served by any server, leader or not.",
        "stale-bound": "A stale read is generally within 50 milliseconds of the leader.",
        "stale-leaderless": "A stale read works while the cluster has no leader.",
        "bounds": "With KnownLeader and LastContact, clients can limit the age of a read.",
    },
    "authentication": {
        "token": "A request carries a token, and the rights of the token apply.",
        "header": "The token may be in the header X-Cluster-Token.",
        "bearer": "The token may be a bearer token.",
        "forbidden": "A request that is not authenticated for the operation is a 403.",
        "expired": "An expired token authenticates nothing: 403, with the reason as text.",
    },
    "errors": {
        "success": "200 and 204 are success.",
        "invalid": "An invalid request is a 400.",
        "forbidden": "A client that is not authenticated gets a 403.",
        "unknown": "An unknown resource is a 404.",
        "server": "5xx is a failure of the server.",
    },
    "versioning": {"prefix": "Every route is prefixed with /v1/."},
}  # fmt: skip


def rule(section: str, *names: str) -> Callable[[F], F]:
    """Declare which rules a test covers."""
    unknown = [name for name in names if name not in RULES[section]]
    assert not unknown, f"section {section} has no rule {unknown}"

    def return_unchanged(test: F) -> F:
        return test

    return return_unchanged
