"""Rate limits of a real agent's API: off by default; heartbeats and waiting requests are exempt."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.agent.processes import ANSWERED_WITHIN_S, RunningAgent, run, running
from tests.agent.test_access_control import bootstrap_access
from tests.agent.test_processes import A_JOB, write_agent_config
from tests.waiting import wait_until
from wharf.agent.errors import CommandError
from wharf.agent.http.limits import build_limiter_settings
from wharf.cli.limits import admin_client
from wharf.cluster.api.settings import ApiSettings, LimitsSettings
from wharf.cluster.engines.settings import EngineKind, StateSettings
from wharf.config.settings import AgentSettings

SMALL = """
profile = "cluster"
[[rule]]
name = "core"
ceiling = { credential = 8, none = 4 }
[[rule]]
name = "concurrent"
ceiling = 1
[[rule]]
name = "waiting"
ceiling = 3
"""

HttpReply = tuple[int, Mapping[str, str], str]


def ask(agent: RunningAgent, path: str, *, token: str = "", headers: Mapping[str, str] | None = None) -> HttpReply:
    all_headers = {**(headers or {}), **({"X-Cluster-Token": token} if token else {})}
    request = urllib.request.Request(agent.address + path, headers=all_headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
            return reply.status, dict(reply.headers), reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read().decode()


def write_rules(folder: Path, rules: str, more: str = "", limiter: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rules.toml").write_text(rules)
    (folder / "limits.toml").write_text(f'rules = "rules.toml"\n{limiter}')
    return write_agent_config(folder, f'{more}\n[limits]\nenabled = true\nfile = "{folder}/limits.toml"\n')


def fetch_json(agent: RunningAgent, target: str) -> Any:  # Replies have different types.
    return admin_client.query_limiter(agent.folder / "data" / "limits-api.sock", target)


def post_action(agent: RunningAgent, target: str, **facts: object) -> None:
    admin_client.post_action(agent.folder / "data" / "limits-api.sock", target, **facts)


def read_metric(agent: RunningAgent, prefix: str) -> float:
    text = admin_client.query_text(agent.folder / "data" / "limits-api.sock", "/metrics")
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(prefix)), 0.0)


def test_an_api_without_limits_sends_no_limit_headers(tmp_path: Path) -> None:
    with running(tmp_path / "a", "agent", "--config", str(write_agent_config(tmp_path / "a"))) as agent:
        agent.wait_ready()

        status, headers, _ = ask(agent, "/v1/jobs")

        assert (status, [name for name in headers if "ratelimit" in name.lower()]) == (200, [])
        assert ask(agent, "/rate_limit")[0] == 404


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent with small limits, and with access control so that each token has its own buckets."""
    folder = tmp_path_factory.mktemp("limited") / "a"
    file = write_rules(folder, SMALL, "[acl]\nenabled = true")
    # No node: the agent would reject it, and its retries would count for the address of the tests.
    file.write_text(file.read_text().replace("[client]\nenabled = true", "[client]\nenabled = false"))
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        yield agent


@pytest.fixture(scope="module")
def management_token(limited: RunningAgent) -> str:
    post_action(limited, "/off", for_ms=60_000)
    token = bootstrap_access(limited)["SecretID"]
    post_action(limited, "/off", for_ms=0)
    return token


def put(agent: RunningAgent, path: str, body: object, token: str) -> dict[str, str]:
    headers = {"X-Cluster-Token": token}
    request = urllib.request.Request(agent.address + path, json.dumps(body).encode(), headers, method="PUT")
    with urllib.request.urlopen(request, timeout=ANSWERED_WITHIN_S) as reply:
        created: dict[str, str] = json.load(reply)
        return created


def create_token(agent: RunningAgent, creator: str, name: str) -> str:
    """Create a management token, so that each test starts with full buckets. `creator` is the token that creates it."""
    post_action(agent, "/off", for_ms=60_000)
    created = put(agent, "/v1/acl/token", {"Name": name, "Type": "management"}, creator)
    post_action(agent, "/off", for_ms=0)
    return created["SecretID"]


def test_each_token_has_its_own_bucket_and_gets_429_with_a_retry_time_beyond_it(
    limited: RunningAgent, management_token: str
) -> None:
    first, second = (create_token(limited, management_token, name) for name in ("first", "second"))

    replies = [ask(limited, "/v1/jobs", token=first) for _ in range(9)]

    assert [status for status, _, _ in replies] == [200] * 8 + [429]
    _, headers, body = replies[-1]
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("8", "0")
    assert 1 <= int(headers["retry-after"]) <= 60
    assert json.loads(body)["cause"] == "primary"
    assert ask(limited, "/v1/jobs", token=second)[0] == 200


def test_the_api_shows_which_token_is_limited(limited: RunningAgent, management_token: str) -> None:
    flood, reader = (create_token(limited, management_token, name) for name in ("flood", "reader"))
    for _ in range(10):
        ask(limited, "/v1/jobs", token=flood)

    status = json.loads(ask(limited, "/v1/limits", token=reader)[2])

    found = {each["TokenName"]: (each["Rule"], each["Refused"]) for each in status["Limited"]}
    assert found["flood"] == ("core", 2)


def test_requests_without_a_known_token_are_counted_by_address(
    limited: RunningAgent,
) -> None:
    post_action(limited, "/reset", caller="address:127.0.0.1")

    anonymous = ask(limited, "/v1/jobs")
    unknown = ask(limited, "/v1/jobs", token="11111111-2222-3333-4444-555555555555")

    assert (anonymous[0], anonymous[2]) == (403, "Permission denied")
    assert unknown[0] == 403
    assert [int(reply[1]["x-ratelimit-remaining"]) for reply in (anonymous, unknown)] == [3, 2]


def test_waiting_requests_do_not_count_as_concurrent(limited: RunningAgent, management_token: str) -> None:
    token = create_token(limited, management_token, "waiter")
    index = ask(limited, "/v1/jobs", token=token)[1]["x-cluster-index"]
    wait = f"/v1/jobs?index={index}&wait=60s"

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask, limited, wait, token=token) for _ in range(3)]
        wait_until(lambda: read_metric(limited, "wharf_limits_running ") == 3, what="three requests are waiting")
        ordinary = ask(limited, "/v1/jobs", token=token)
        excess = ask(limited, wait, token=token)
        put(limited, "/v1/jobs", A_JOB, token)
        replies = [future.result() for future in waiting]

    assert ordinary[0] == 200
    assert (excess[0], json.loads(excess[2])["limit"]["name"]) == (429, "waiting")
    assert [status for status, _, _ in replies] == [200, 200, 200]
    wait_until(lambda: read_metric(limited, "wharf_limits_running ") == 0, what="no request is running")


def test_time_spent_waiting_is_not_counted_as_cpu_time(limited: RunningAgent, management_token: str) -> None:
    token = create_token(limited, management_token, "patient")
    index = ask(limited, "/v1/jobs", token=token)[1]["x-cluster-index"]

    ask(limited, f"/v1/jobs?index={index}&wait=2s", token=token)

    accessor = json.loads(ask(limited, "/v1/acl/token/self", token=token)[2])["AccessorID"]
    (cpu,) = [limit for limit in fetch_json(limited, f"/callers/user:{accessor}")["limits"] if limit["rule"] == "cpu"]
    assert cpu["used"] < 1_000


def test_a_heartbeat_is_admitted_while_all_other_requests_are_refused(tmp_path: Path) -> None:
    rules = 'profile = "cluster"\n[[rule]]\nname = "core"\nwindow = "1h"\nceiling = { credential = 0, none = 40 }\n'
    with running(tmp_path / "a", "agent", "--config", str(write_rules(tmp_path / "a", rules))) as agent:
        agent.wait_ready()
        nodes = wait_until(lambda: json.loads(ask(agent, "/v1/nodes")[2]), what="the node has registered")
        wait_until(lambda: ask(agent, "/v1/nodes")[0] == 429, what="callers are refused")
        before = read_metric(agent, 'wharf_limits_rule_requests_total{rule="machines",outcome="within"}')

        guess = ask(agent, "/v1/nodes", headers={"X-Cluster-Node-Secret": "a guess"})

        assert len(nodes) == 1
        assert guess[0] == 429
        wait_until(
            lambda: read_metric(agent, 'wharf_limits_rule_requests_total{rule="machines",outcome="within"}') > before,
            what="a heartbeat of the node is admitted",
            within_s=60.0,
        )


def test_a_deleted_token_has_no_bucket(limited: RunningAgent, management_token: str) -> None:
    post_action(limited, "/off", for_ms=60_000)
    created = put(limited, "/v1/acl/token", {"Name": "short", "Type": "management"}, management_token)
    post_action(limited, "/off", for_ms=0)
    token = created["SecretID"]
    post_action(limited, "/reset", caller="address:127.0.0.1")
    assert ask(limited, "/v1/jobs", token=token)[1]["x-ratelimit-limit"] == "8"

    post_action(limited, "/off", for_ms=60_000)
    deleting = urllib.request.Request(
        f"{limited.address}/v1/acl/token/{created['AccessorID']}",
        headers={"X-Cluster-Token": management_token},
        method="DELETE",
    )
    urllib.request.urlopen(deleting, timeout=ANSWERED_WITHIN_S).close()
    post_action(limited, "/off", for_ms=0)

    assert ask(limited, "/v1/jobs", token=token)[1]["x-ratelimit-limit"] == "4"


def test_rules_that_would_refuse_a_heartbeat_prevent_the_start(tmp_path: Path) -> None:
    rules = 'profile = "cluster"\n[[rule]]\nname = "machines"\nceiling = { machine = 10 }\n'

    process = run(tmp_path / "a", "agent", "--config", str(write_rules(tmp_path / "a", rules)))

    assert process.returncode == 1
    assert "would refuse heartbeats" in process.stderr + process.stdout


def settings_with(file: str, *, processes: int = 1, engine: EngineKind = EngineKind.SQLITE) -> AgentSettings:
    return AgentSettings(
        limits=LimitsSettings(enabled=True, file=file),
        api=ApiSettings(processes=processes),
        state=StateSettings(engine=engine),
    )


def test_counters_in_memory_serve_one_machine_only(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text("")

    stores = [
        build_limiter_settings(settings_with(str(file), processes=2), tmp_path, name).store
        for name in ("api-1", "api-2")
    ]
    assert [(store.kind.value, store.socket) for store in stores] == [
        ("memory", tmp_path / "limits" / "counters.sock"),
        ("neighbour", tmp_path / "limits" / "counters.sock"),
    ]
    with pytest.raises(CommandError, match="several machines would each count alone"):
        build_limiter_settings(settings_with(str(file), engine=EngineKind.ETCD), tmp_path, "api")

    file.write_text('[store]\nkind = "redis"\n')
    limiter_settings = build_limiter_settings(settings_with(str(file), processes=2), tmp_path, "api-1")
    assert (limiter_settings.profile, limiter_settings.admin_socket) == ("cluster", tmp_path / "limits-api-1.sock")


@pytest.mark.parametrize(
    ("text", "name"), [('directory = "people.toml"\n', "directory"), ('credentials = "opaque"\n', "credentials")]
)
def test_settings_that_only_a_gateway_has_are_rejected(tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(text)

    with pytest.raises(CommandError, match=f"{name} is for a gateway"):
        build_limiter_settings(settings_with(str(file)), tmp_path, "api")


def test_several_api_processes_share_their_counters(tmp_path: Path) -> None:
    """The kernel spreads connections over the processes, so the test opens enough that both serve some."""
    folder = tmp_path / "a"
    file = write_rules(
        folder, SMALL.replace("none = 4", "none = 60"), "[api]\nprocesses = 2", "[store]\nwait_ms = 20000\n"
    )
    with running(folder, "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(
            lambda: admin_client.list_admin_addresses(folder / "data")[1:], what="both processes listen for operators"
        )
        second = folder / "data" / "limits-api-2.sock"
        wait_until(
            lambda: "store_away 0" in admin_client.query_text(second, "/metrics"),
            what="the second process uses the counters of the first",
        )
        wait_until(lambda: ask(agent, "/v1/jobs")[0] == 200, what="the API answers")
        replies = [ask(agent, "/v1/jobs") for _ in range(20)]
        refused_statuses = [ask(agent, "/v1/jobs")[0] for _ in range(60)]
        seen = [
            answer["seen"][answer["process"]]
            for answer in admin_client.query_all_limiters(folder / "data", "/top?minutes=5")
        ]

    used = [
        int(headers["x-ratelimit-used"]) for status, headers, _ in replies if status == 200
    ]  # A 5xx reply is not counted.
    assert used == sorted(set(used))
    assert used[-1] > 10
    assert refused_statuses[-1] == 429
    assert [len(rows) for rows in seen] == [1, 1]
