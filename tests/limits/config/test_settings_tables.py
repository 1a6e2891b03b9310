"""Every table of the settings file: which field each key sets, and which combinations are refused."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from wharf.limits.config import LimiterSettings, StoreKind, read_settings
from wharf.limits.config.settings_file import InvalidUpstream, read_upstream
from wharf.limits.core.callers.addresses import read_proxies
from wharf.limits.rules import InvalidFile
from wharf.limits.stores.redis.quota_leases import QuotaSettings

DEFAULTS = LimiterSettings()
ETC = Path("etc")


def read(text: str) -> LimiterSettings:
    return read_settings(text, folder=ETC)


def list_problems(text: str, folder: Path = ETC) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        read_settings(text, "my.toml", folder=folder)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('rules = "r.toml"', "rules_file", ETC / "r.toml"),
        ('rules = "/r.toml"', "rules_file", Path("/r.toml")),
        ('profile = "cluster"', "profile", "cluster"),
        ('directory = "d.toml"', "directory_file", ETC / "d.toml"),
        ('data_folder = "data"', "data_folder", ETC / "data"),
        ('admin_socket = "a.sock"', "admin_socket", ETC / "a.sock"),
        ('request_id_header = "X-Request-ID-2"', "request_id_header", "x-request-id-2"),
        ("insights = true", "has_insights", True),
        ("[meta]\na = [1]", "meta", {"a": [1]}),
        ('[webhook]\nurl = "https://a.example/x"', "webhook_url", "https://a.example/x"),
        ('[webhook]\nurl = "http://a.example"', "webhook_url", "http://a.example"),
        ("[addresses]\nhops = 2", "proxies", read_proxies(hops=2)),
        (
            '[addresses]\ntrusted = ["10.0.0.0/8"]\nforwarded = true',
            "proxies",
            read_proxies(trusted=["10.0.0.0/8"], should_read_forwarded=True),
        ),
        ("[gateway]\nconnect_timeout = \"2s\"", "gateway", replace(DEFAULTS.gateway, connect_ms=2_000)),
        ("[gateway]\nupstream_timeout = \"2s\"", "gateway", replace(DEFAULTS.gateway, upstream_ms=2_000)),
        ("[gateway]\nhead_timeout = \"2s\"", "gateway", replace(DEFAULTS.gateway, head_ms=2_000)),
        ("[gateway]\nidle_timeout = \"2s\"", "gateway", replace(DEFAULTS.gateway, idle_ms=2_000)),
        ("[gateway]\ndrain_timeout = \"2s\"", "gateway", replace(DEFAULTS.gateway, drain_ms=2_000)),
        ("[gateway]\nhead_bytes_most = 9000", "gateway", replace(DEFAULTS.gateway, head_bytes_most=9_000)),
        ("[gateway]\nheaders_most = 77", "gateway", replace(DEFAULTS.gateway, headers_most=77)),
        ("[gateway]\nconnections_most = 77", "gateway", replace(DEFAULTS.gateway, connections_most=77)),
        (
            "[gateway]\nupstream_connections_most = 77",
            "gateway",
            replace(DEFAULTS.gateway, upstream_connections_most=77),
        ),
        ('[gateway]\nlisten = "[::1]:81"', "gateway", replace(DEFAULTS.gateway, host="::1", port=81)),
        (
            '[gateway]\nmetrics_listen = "10.0.0.1:82"',
            "gateway",
            replace(DEFAULTS.gateway, metrics_host="10.0.0.1", metrics_port=82),
        ),
        (
            '[gateway]\ncertificate_file = "c"\nkey_file = "k"',
            "gateway",
            replace(DEFAULTS.gateway, certificate_file=ETC / "c", key_file=ETC / "k"),
        ),
        ('[gateway]\nupstream_ca_file = "ca"', "gateway", replace(DEFAULTS.gateway, upstream_ca_file=ETC / "ca")),
        (
            "[gateway]\ntrust_marks = false",
            "gateway",
            replace(DEFAULTS.gateway, trusts_marks=False),
        ),
        ('[serve]\ngrpc_listen = "0.0.0.0:81"', "serve", replace(DEFAULTS.serve, grpc_host="0.0.0.0", grpc_port=81)),
        ('[serve]\ncheck_listen = "[::1]:82"', "serve", replace(DEFAULTS.serve, check_host="::1", check_port=82)),
        ('[serve]\nmetrics_listen = "[::]:83"', "serve", replace(DEFAULTS.serve, metrics_host="::", metrics_port=83)),
        (
            '[serve]\ncertificate_file = "c"\nkey_file = "k"\nclient_ca_file = "a"',
            "serve",
            replace(DEFAULTS.serve, certificate_file=ETC / "c", key_file=ETC / "k", client_ca_file=ETC / "a"),
        ),
        ("[serve]\nconnections_most = 7", "serve", replace(DEFAULTS.serve, connections_most=7)),
        ("[serve]\nstreams_most = 7", "serve", replace(DEFAULTS.serve, streams_most=7)),
        ("[serve]\ncalls_most = 7", "serve", replace(DEFAULTS.serve, calls_most=7)),
        ("[serve]\nmessage_bytes_most = 7000", "serve", replace(DEFAULTS.serve, message_bytes_most=7_000)),
        ('[serve]\nhead_timeout = "2s"', "serve", replace(DEFAULTS.serve, head_ms=2_000)),
        ('[serve]\nidle_timeout = "2s"', "serve", replace(DEFAULTS.serve, idle_ms=2_000)),
        ('[serve]\ndrain_timeout = "2s"', "serve", replace(DEFAULTS.serve, drain_ms=2_000)),
        ('owner_paths = ["* /t/{owner}"]', "owner_paths", ("* /t/{owner}",)),
        ("[decisions]\nkept = false", "decisions", replace(DEFAULTS.decisions, is_kept=False)),
        ("[decisions]\none_in = 7", "decisions", replace(DEFAULTS.decisions, one_in=7)),
        ('[decisions]\nkeep = "2h"', "decisions", replace(DEFAULTS.decisions, kept_ms=7_200_000)),
        ("[decisions]\ncut_addresses = true", "decisions", replace(DEFAULTS.decisions, cuts_addresses=True)),
        ("[decisions]\nshared_most = 2000", "decisions", replace(DEFAULTS.decisions, shared_most=2_000)),
        ("[decisions]\nmegabytes_most = 3", "decisions", replace(DEFAULTS.decisions, bytes_most=3 << 20)),
        ("[store]\nsaved = false", "store", replace(DEFAULTS.store, is_saved=False)),
        ('[store]\nsocket = "s"', "store", replace(DEFAULTS.store, socket=ETC / "s")),
        (
            "[store]\nwait_ms = 7\nlosses_most = 9",
            "store",
            replace(DEFAULTS.store, guard=replace(DEFAULTS.store.guard, wait_ms=7, losses_most=9)),
        ),
        (
            '[store]\nkind = "neighbour"\nsocket = "s"\nfallback_processes = 3',
            "store",
            replace(
                DEFAULTS.store,
                kind=StoreKind.NEIGHBOUR,
                socket=ETC / "s",
                guard=replace(DEFAULTS.store.guard, fallback_processes=3),
            ),
        ),
    ],
)  # fmt: skip
def test_each_key_sets_its_field_and_no_other(text: str, field: str, value: object) -> None:
    assert read(text) == replace(DEFAULTS, **{field: value})


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('addresses = ["a:1", "b:2"]', {"addresses": ("a:1", "b:2")}),
        ("database = 3", {"database": 3}),
        ('user = "ada"', {"user": "ada"}),
        ("tls = true", {"tls": True}),
        ('prefix = "p:"', {"prefix": "p:"}),
        ("wait_replicas = 2", {"wait_replicas": 2}),
        ('ca_file = "ca"', {"ca_file": "etc/ca"}),
        ('certificate_file = "c"\nkey_file = "k"', {"certificate_file": "etc/c", "key_file": "etc/k"}),
    ],
)
def test_each_key_of_redis_sets_its_field_and_no_other(text: str, fields: dict[str, Any]) -> None:
    store = read(f'[store]\nkind = "redis"\n{text}').store

    assert store == replace(DEFAULTS.store, kind=StoreKind.REDIS, redis=replace(DEFAULTS.store.redis, **fields))


@pytest.mark.parametrize(
    ("text", "leases"),
    [
        ("leases = true", QuotaSettings()),
        ("leases = true\nlease_size = 9", QuotaSettings(size=9)),
        ("leases = true\nlease_processes = 3", QuotaSettings(processes=3)),
        ("leases = false\nlease_size = 9", None),
        ("lease_size = 9", None),
    ],
)
def test_quota_leases_are_taken_only_if_they_are_set(text: str, leases: QuotaSettings | None) -> None:
    assert read(f'[store]\nkind = "redis"\n{text}').store.leases == leases


def test_the_password_of_redis_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" secret\n")
    text = '[store]\nkind = "redis"\npassword_file = "password"'

    assert read_settings(text, folder=tmp_path).store.redis.password == "secret"
    (tmp_path / "password").write_bytes(b"\xff")
    assert "my.toml:3:1: store.password_file: " in list_problems(text, tmp_path)[0]
    assert "cannot be read" in list_problems(text, tmp_path / "other")[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("meta = 1", ["my.toml:1:1: meta: must be a table: write [meta]"]),
        ('profile = "clustr"', ["my.toml:1:1: profile: 'clustr' is not a profile; did you mean 'cluster'?"]),
        (
            'rules = "r"\nprofile = "cluster"',
            ["my.toml:2:1: profile: is only for a limiter without a rules file: set it in the rules file"],
        ),
        (
            'request_id_header = "X Id"',
            ["my.toml:1:1: request_id_header: 'X Id' is not a header name: use letters, digits and `-`"],
        ),
        (
            'request_id_header = "X-Öd"',
            ["my.toml:1:1: request_id_header: 'X-Öd' is not a header name: use letters, digits and `-`"],
        ),
        ("stor = 1", ["my.toml:1:1: stor: is not known; did you mean 'store'?"]),
        ("[stores]", ["my.toml:1:1: stores: is not known; did you mean 'store'?"]),
        (
            '[store]\nkind = "neighbour"',
            ["my.toml:2:1: store.kind: needs `socket`, the socket of the counter server"],
        ),
        (
            '[store]\nkind = "neighbour"\nsocket = "s"\nsaved = true',
            ["my.toml:4:1: store.saved: is not used by a neighbour, which has no counters of its own: remove the key"],
        ),
        (
            '[store]\nkind = "redis"\nsocket = "s"',
            ["my.toml:3:1: store.socket: is only for counters in memory: remove the key"],
        ),
        (
            "[store]\nfallback_processes = 3",
            ['my.toml:2:1: store.fallback_processes: is only for Redis: add `kind = "redis"`, or remove the key'],
        ),
        (
            '[store]\nkind = "redis"\naddresses = ["a:1", "b"]',
            ["my.toml:3:1: store.addresses: 'b' is not an address: write host:port, such as 127.0.0.1:6379"],
        ),
        (
            '[gateway]\nlisten = "here"',
            ["my.toml:2:1: gateway.listen: 'here' is not an address: write host:port, such as 0.0.0.0:8080"],
        ),
        (
            '[gateway]\nmetrics_listen = "here"\nlisten = "0.0.0.0:80"',
            ["my.toml:2:1: gateway.metrics_listen: 'here' is not an address: write host:port, such as 0.0.0.0:8080"],
        ),
        (
            '[gateway]\ncertificate_file = "c"',
            ["my.toml:2:1: gateway.certificate_file: is set alone: set both `certificate_file` and `key_file`"],
        ),
        ('[webhook]\nurl = "ftp://a"', ["my.toml:2:1: webhook.url: 'ftp://a' is not a URL: write https://host/path"]),
        ('[webhook]\nurl = "http://"', ["my.toml:2:1: webhook.url: 'http://' is not a URL: write https://host/path"]),
        (
            'admin_listen = "127.0.0.1:1"',
            ["my.toml:1:1: admin_listen: is set alone: set both `admin_listen` and `admin_token_file`"],
        ),
        (
            'admin_token_file = "t"',
            ["my.toml:1:1: admin_token_file: is set alone: set both `admin_listen` and `admin_token_file`"],
        ),
        (
            'admin_listen = "0.0.0.0:1"\nadmin_token_file = "t"',
            [
                "my.toml:1:1: admin_listen: '0.0.0.0:1' is not a local address: write 127.0.0.1:port, and connect from "
                "other machines by ssh"
            ],
        ),
        (
            'admin_listen = "here"\nadmin_token_file = "t"',
            [
                "my.toml:1:1: admin_listen: 'here' is not a local address: write 127.0.0.1:port, and connect from "
                "other machines by ssh"
            ],
        ),
    ],
)
def test_wrong_values_and_combinations_are_refused(text: str, expected: list[str]) -> None:
    assert list_problems(text) == expected


ADMIN = 'admin_listen = "127.0.0.1:4711"\nadmin_token_file = "token"'


def test_an_admin_token_is_read_from_a_private_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" " + "x" * 20 + "\n")
    (tmp_path / "token").chmod(0o600)
    settings = read_settings(ADMIN, folder=tmp_path)

    assert (settings.admin_host, settings.admin_port, settings.admin_token) == ("127.0.0.1", 4_711, "x" * 20)


@pytest.mark.parametrize(
    ("content", "mode", "messages"),
    [
        (b"x" * 19, 0o600, ["does not hold a valid token"]),
        (b"x" * 20 + b" y", 0o600, ["does not hold a valid token"]),
        (b"x" * 20 + b"\x07", 0o600, ["does not hold a valid token"]),
        (b"x" * 20, 0o640, ["other users can access"]),
        (b"x" * 20, 0o604, ["other users can access"]),
        (b"x", 0o601, ["other users can access", "does not hold a valid token"]),
        (b"\xff" * 20, 0o600, ["cannot be read"]),
    ],
)
def test_a_weak_or_public_admin_token_is_refused(
    tmp_path: Path, content: bytes, mode: int, messages: list[str]
) -> None:
    (tmp_path / "token").write_bytes(content)
    (tmp_path / "token").chmod(mode)

    problems = list_problems(ADMIN, tmp_path)

    assert len(problems) == len(messages)
    assert all("my.toml:2:1: admin_token_file: " in problem for problem in problems)
    assert [message for message in messages if not any(message in problem for problem in problems)] == []


def test_a_missing_admin_token_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in list_problems(ADMIN, tmp_path)[0]


@pytest.mark.parametrize(
    ("text", "host", "port", "is_tls", "base_path"),
    [
        ("http://a.example", "a.example", 80, False, ""),
        ("https://a.example", "a.example", 443, True, ""),
        ("http://a_b-c:81/x/y/", "a_b-c", 81, False, "/x/y"),
        ("https://[::1]:8443/", "::1", 8443, True, ""),
        ("http://" + "a" * 253, "a" * 253, 80, False, ""),
    ],
)
def test_the_url_of_a_service_is_read(text: str, host: str, port: int, is_tls: bool, base_path: str) -> None:
    upstream = read_upstream(text)

    assert (upstream.host, upstream.port, upstream.is_tls, upstream.base_path) == (host, port, is_tls, base_path)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a.example:80", "ftp://a", "http://", "http://a:0", "http://a:x", "http://a:65536", "http://a?b=c"),
        *("http://ada@a", "http://ada:x@a", "http://a\x7f", "http://" + "a" * 254, "http://a*b", "http://[::1::2]"),
    ],
)
def test_a_url_that_the_gateway_cannot_use_is_refused(text: str) -> None:
    with pytest.raises(InvalidUpstream, match="is not the URL of a service"):
        read_upstream(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            'check_listen = "0.0.0.0:82"',
            "my.toml:2:1: serve.check_listen: other machines can reach 0.0.0.0:82: set `check_secret_file`, so that only "
            "your proxies can report addresses and paths, or listen on 127.0.0.1",
        ),
        ('grpc_listen = "81"', "my.toml:2:1: serve.grpc_listen: '81' is not an address: write host:port, such as 0.0.0.0:8080"),
        ('key_file = "k"', "my.toml:2:1: serve.key_file: is set alone: set both `certificate_file` and `key_file`"),
        (
            'client_ca_file = "a"',
            "my.toml:2:1: serve.client_ca_file: needs TLS: set `certificate_file` and `key_file` too",
        ),
    ],
)  # fmt: skip
def test_incomplete_settings_of_servers_for_proxies_are_refused(text: str, problem: str) -> None:
    assert list_problems(f"[serve]\n{text}") == [problem]


def test_a_secret_for_checks_is_read_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 20 + "\n")
    file.chmod(0o600)
    settings = read_settings('[serve]\ncheck_listen = "0.0.0.0:82"\ncheck_secret_file = "secret"', folder=tmp_path)
    assert settings.serve.check_secret == "s" * 20


def test_a_secret_for_checks_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 20)
    file.chmod(0o644)
    (problem,) = list_problems('[serve]\ncheck_secret_file = "secret"', tmp_path)
    assert problem == f"my.toml:2:1: serve.check_secret_file: other users can access {file}: run chmod 600 {file}"
