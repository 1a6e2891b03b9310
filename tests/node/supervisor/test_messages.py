"""The encoding of messages, which agents and supervisors of other versions must understand."""

import msgspec

from wharf.node.supervisor.messages import (
    FromAgent,
    FromSupervisor,
    Hello,
    RunLogSettings,
    RunRequest,
    StartRun,
)


def test_the_encoded_names_of_a_start_request_are_fixed() -> None:
    request = RunRequest(
        "run-1",
        ("sh",),
        {},
        work_folder="/",
        log=RunLogSettings("/logs", "web"),
        is_session_leader=True,
        has_sandbox=True,
        input_texts=("text",),
    )
    encoded = msgspec.msgpack.encode(StartRun(request))

    assert {
        "type": "StartRun",
        "order": {
            "name": "run-1",
            "command": ["sh"],
            "environment": {},
            "work_folder": "/",
            "log": {"folder": "/logs", "task": "web"},
            "leads_itself": True,
            "has_walls": True,
            "papers": ["text"],
        },
    } == msgspec.msgpack.decode(encoded)
    assert StartRun(request) == msgspec.msgpack.decode(encoded, type=FromAgent)


def test_the_encoded_names_of_the_first_message_are_fixed() -> None:
    hello = Hello(7, "cgroup", ("cpu",), answers_pings=True, sends_run_messages=True)
    encoded = msgspec.msgpack.encode(hello)

    fields = {
        "type": "Hello",
        "pid": 7,
        "finds_by": "cgroup",
        "limits": ["cpu"],
        "pings": True,
        "sends_run_messages": True,
    }
    assert fields == msgspec.msgpack.decode(encoded)
    assert hello == msgspec.msgpack.decode(encoded, type=FromSupervisor)
