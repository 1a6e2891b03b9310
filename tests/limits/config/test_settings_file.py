"""The limiter's configuration file: keys, errors with line and column, and reloads while it runs."""

import logging
from pathlib import Path

import pytest

from tests.limits.decision_services import DIRECTORY, AdvancingWorld, AsgiCaller, run_async
from wharf.limits.asgi import LimitsMiddleware
from wharf.limits.config import LimiterSettings, StoreKind, read_settings
from wharf.limits.config.file_watcher import WatchedFile
from wharf.limits.config.settings_file import InvalidUpstream, read_upstream
from wharf.limits.core.callers.addresses import read_proxies
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings
from wharf.limits.rules import InvalidFile
from wharf.limits.stores.redis import RedisKind
from wharf.limits.stores.redis.quota_leases import QuotaSettings
from wharf.sinks.settings import HttpFormat, SinkKind, SinkSettings
from wharf.world import RealWorld

EVERY_TABLE = """
rules = "rules.toml"
directory = "people.toml"
[addresses]
trusted = ["10.0.0.0/8"]
[store]
kind = "redis"
topology = "cluster"
addresses = ["one:7001", "two:7002"]
wait_ms = 20
leases = true
lease_size = 10
[gateway]
upstream = "https://service.example/base/"
listen = "0.0.0.0:80"
head_timeout = "3s"
[decisions]
one_in = 10
megabytes_most = 1
[meta]
api = ["192.0.2.0/24"]
"""


def test_every_part_of_the_file_is_read() -> None:
    settings = read_settings(EVERY_TABLE, folder=Path("etc"))

    assert (settings.rules_file, settings.directory_file) == (Path("etc/rules.toml"), Path("etc/people.toml"))
    assert settings.proxies == read_proxies(trusted=["10.0.0.0/8"])
    store, gateway = settings.store, settings.gateway
    assert (store.kind, store.redis.kind, store.redis.addresses) == (
        StoreKind.REDIS,
        RedisKind.CLUSTER,
        ("one:7001", "two:7002"),
    )
    assert (store.guard.wait_ms, store.leases) == (20, QuotaSettings(size=10))
    assert str(gateway.upstream) == "https://service.example/base"
    assert (gateway.host, gateway.port, gateway.head_ms) == ("0.0.0.0", 80, 3_000)
    assert (settings.decisions.one_in, settings.decisions.bytes_most) == (10, 1 << 20)
    assert settings.meta == {"api": ["192.0.2.0/24"]}


def test_an_empty_file_selects_the_built_in_profile_and_counters_in_memory() -> None:
    assert read_settings("") == LimiterSettings()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('rule = "x"', "limits.toml:1:1: rule: is not known; did you mean 'rules'?"),
        ("[store]\nwait_ms = 0", "limits.toml:2:1: store.wait_ms: 0 is not a whole number from 1 to 60000"),
        (
            '[store]\naddresses = ["a:1"]',
            'limits.toml:2:1: store.addresses: is only for Redis: add `kind = "redis"`, or remove the key',
        ),
        (
            '[gateway]\nupstream = "service"',
            "limits.toml:2:1: gateway.upstream: 'service' is not the URL of a service: write a URL such as http://127.0.0.1:3000",
        ),
        (
            '[addresses]\ntrusted = ["10.0.0.0/8"]\nhops = 1',
            "limits.toml:2:1: addresses: `trusted` and `hops` are both set: set the networks of the proxies "
            "or their number, not both",
        ),
        (
            '[gateway]\nkey_file = "k"',
            "limits.toml:2:1: gateway.key_file: is set alone: set both `certificate_file` and `key_file`",
        ),
    ],
)
def test_errors_name_file_line_and_key(text: str, expected: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        read_settings(text)

    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "limits.toml cannot be read: No such file or directory"),
        ({"limits.toml": 'rules = "rules.toml"'}, "rules.toml cannot be read: No such file or directory"),
        (
            {"limits.toml": 'rules = "rules.toml"', "rules.toml": "rule = 1"},
            "rules.toml:1:1: rule: must be a list of tables",
        ),
        (
            {"limits.toml": 'directory = "people.toml"', "people.toml": "[[user]]\n"},
            "people.toml:1:1: user[0].login: is missing",
        ),
        ({"limits.toml": "\xff"}, "limits.toml is not UTF-8"),
    ],
)
def test_a_limiter_that_cannot_start_reports_the_reason(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, "latin-1")

    with pytest.raises(LimiterStartError) as caught:
        RateLimiter(load_settings(tmp_path / "limits.toml"), AdvancingWorld())

    assert message in str(caught.value)


def write_files(folder: Path) -> LimiterSettings:
    (folder / "rules.toml").write_text('[[rule]]\nname = "core"\nceiling = 10\n')
    (folder / "people.toml").write_text(DIRECTORY)
    (folder / "limits.toml").write_text('rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n')
    return load_settings(folder / "limits.toml")


def test_changed_files_are_applied_and_invalid_ones_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> list[int | str]:
        limits = RateLimiter(write_files(tmp_path), RealWorld())
        rules, directory = limits.watcher.files

        core = [rule.name for rule in limits.decision_service.evaluator.rules.rules].index("core")
        values: list[int | str] = []
        for text in ("ceiling = 20", "ceiling = -1", "celing = 3", "ceiling = 30"):
            rules.path.write_text(f'[[rule]]\nname = "core"\n{text}\n')
            await rules.check()
            values.append(max(limits.decision_service.evaluator.rules.rules[core].ceilings.values()))
        directory.path.write_text("user = 1")
        await directory.check()
        values.append(len(limits.decision_service.caller_resolver.directory.users))  # type: ignore[attr-defined] # The directory of a file has users.
        directory.path.write_text("")
        await directory.check()
        values.append(len(limits.decision_service.caller_resolver.directory.users))  # type: ignore[attr-defined] # The same.
        return values

    assert run_async(scenario) == [20, 20, 20, 30, 1, 0]
    assert "file rejected, previous version stays in use purpose=rules" in caplog.text
    assert "rules.toml:3:1" in caplog.text


def test_counters_survive_a_restart(tmp_path: Path) -> None:
    async def send_one_request() -> str:
        limits = RateLimiter(write_files(tmp_path), RealWorld())
        await limits.open()
        reply = await AsgiCaller(token="ghp_adaadaadaadaadaadaada").call(LimitsMiddleware(_application, limits))
        await limits.close()
        return reply.headers["x-ratelimit-used"]

    assert [run_async(send_one_request), run_async(send_one_request)] == ["1", "2"]


async def _application(_scope: object, _receive: object, send: object) -> None:
    assert callable(send)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def test_rules_with_lint_errors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[rule]]\nname = "odd"\ncounts = "points"\nwindow = "1m"\nceiling = 3\n')
    (tmp_path / "limits.toml").write_text('rules = "rules.toml"\n')

    with pytest.raises(LimiterStartError, match=r"rules.toml:1:1: rule odd: "):
        RateLimiter(load_settings(tmp_path / "limits.toml"), AdvancingWorld())


@pytest.mark.parametrize(
    "text", ["http://[::1", "http://a b", "http://a\tb", "http://b\u00fccher", "http://x]", "http://" + "a" * 300]
)
def test_a_text_that_is_not_the_url_of_a_service_is_refused(text: str) -> None:
    with pytest.raises(InvalidUpstream, match="is not the URL of a service"):
        read_upstream(text)


def test_an_unchanged_file_is_applied_only_if_that_is_forced(tmp_path: Path) -> None:
    applied: list[str] = []

    async def apply(text: str) -> None:
        applied.append(text)

    async def scenario() -> list[bool]:
        path = tmp_path / "file"
        missing = WatchedFile(path, "rules", apply)
        results = [await missing.check(), await missing.check(is_forced=True)]
        path.write_text("one")
        file = WatchedFile(path, "rules", apply)
        results += [await file.check(), await file.check(is_forced=True)]
        path.write_text("another")
        return [*results, await file.check(), await file.check()]

    assert run_async(scenario) == [False, False, False, True, True, False]
    assert applied == ["one", "another"]


# -- sinks -----------------------------------------------------------------------------------------------------------


def write_secret(folder: Path, text: str = "Bearer x\n", mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    return f'secret_file = "{path}"'


def test_each_kind_of_sink_is_read(tmp_path: Path) -> None:
    secret = write_secret(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("AK\nSK\n")
    keys.chmod(0o600)
    text = f"""
[[sink]]
name = "changes"
kind = "file"
types = ["limits.audit"]
path = "changes.jsonl"
rotate_megabytes = 5
rotate_every = "1h"
rotate_files = 3
[[sink]]
name = "syslog"
kind = "syslog"
url = "tls://logs.example"
facility = 13
ca_file = "ca.pem"
[[sink]]
name = "http"
kind = "http"
url = "https://logs.example/in?x=y"
format = "array"
compress = true
{secret}
secret_header = "dd-api-key"
timeout = 30
spool_megabytes_most = 7
[[sink]]
name = "otlp"
kind = "otlp"
url = "http://127.0.0.1:4318/v1/logs"
[[sink]]
name = "s3"
kind = "s3"
url = "https://s3.example"
bucket = "logs"
prefix = "wharf/"
region = "eu-west-1"
secret_file = "{keys}"
"""

    assert read_settings(text, folder=Path("etc")).sinks == (
        SinkSettings(
            name="changes",
            kind=SinkKind.FILE,
            types=("limits.audit",),
            path=Path("etc/changes.jsonl"),
            rotate_bytes=5_000_000,
            rotate_ms=3_600_000,
            rotate_files=3,
        ),
        SinkSettings(name="syslog", kind=SinkKind.SYSLOG, url="tls://logs.example", facility=13, ca_file="etc/ca.pem"),
        SinkSettings(
            name="http",
            kind=SinkKind.HTTP,
            url="https://logs.example/in?x=y",
            format=HttpFormat.ARRAY,
            is_compressed=True,
            secret="Bearer x",
            secret_header="dd-api-key",
            timeout_ms=30_000,
            spool_bytes=7 << 20,
        ),
        SinkSettings(name="otlp", kind=SinkKind.OTLP, url="http://127.0.0.1:4318/v1/logs"),
        SinkSettings(
            name="s3",
            kind=SinkKind.S3,
            url="https://s3.example",
            bucket="logs",
            prefix="wharf/",
            region="eu-west-1",
            access_key="AK",
            secret_key="SK",
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kind = "file"', "sink[0].name: is missing"),
        ('name = "a"', "sink[0].kind: is missing"),
        ('name = "a"\nkind = "fil"', 'sink[0].kind: "fil" is not known: known are file, syslog, http, otlp, s3'),
        ('name = "a"\nkind = "file"', "sink[0].path: is missing: a sink of the kind file needs the file"),
        ('name = "a"\nkind = "http"', "sink[0].url: is missing: a sink of the kind http needs the URL"),
        ('name = "a"\nkind = "http"\nurl = "logs"', "sink[0].url: 'logs' is not the URL of a receiver"),
        (
            'name = "a"\nkind = "otlp"\nurl = "https://u:p@h/"',
            "sink[0].url: 'https://u:p@h/' is not the URL of a receiver",
        ),
        ('name = "a"\nkind = "syslog"\nurl = "logs"', "sink[0].url: 'logs' is not a syslog receiver: write udp://"),
        ('name = "a"\nkind = "file"\npath = "x"\nurl = "y"', "sink[0].url: is not used by a sink of the kind file"),
        ('name = "a"\nkind = "file"\npath = "x"\ntypes = "audit"', "sink[0].types: 'audit' is not a type of record"),
        (
            'name = "a"\nkind = "file"\npath = "x"\n[[sink]]\nname = "a"\nkind = "file"\npath = "y"',
            "sink[1].name: 'a' is the name of two sinks",
        ),
        ('name = "a"\nkind = "s3"\nurl = "https://h"', "sink[0].bucket: is missing"),
        ('name = "a"\nkind = "s3"\nurl = "https://h"\nbucket = "b"', "sink[0].secret_file: is missing"),
        ('name = "a"\nkind = "http"\nurl = "https://h"\nsecret_header = "a b"', "sink[0].secret_header: 'a b' is not"),
        (
            'name = "a"\nkind = "http"\nurl = "https://h"\nsecret_file = "/none/x"',
            "sink[0].secret_file: /none/x cannot",
        ),
    ],
)
def test_an_invalid_sink_is_a_problem_of_its_key(text: str, message: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        read_settings(f"[[sink]]\n{text}\n")

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "mode", "kind", "message"),
    [
        ("x", 0o640, "http", "other users can access"),
        ("", 0o600, "http", "does not contain one line with the secret"),
        ("a\nb", 0o600, "http", "does not contain one line with the secret"),
        ("a\x01", 0o600, "http", "does not contain one line with the secret"),
        ("a", 0o600, "s3", "does not contain two lines, the access key and the secret key"),
    ],
)
def test_an_invalid_secret_of_a_sink_is_a_problem(
    tmp_path: Path, content: str, mode: int, kind: str, message: str
) -> None:
    secret = write_secret(tmp_path, content, mode)
    bucket = 'bucket = "b"' if kind == "s3" else ""

    with pytest.raises(InvalidFile, match=message) as caught:
        read_settings(f'[[sink]]\nname = "a"\nkind = "{kind}"\nurl = "https://h"\n{secret}\n{bucket}\n')

    assert len(str(caught.value).splitlines()) == 1


def test_the_number_of_sinks_is_limited() -> None:
    text = "".join(f'[[sink]]\nname = "s{number}"\nkind = "file"\npath = "x"\n' for number in range(17))

    with pytest.raises(InvalidFile, match="17 sinks are more than 16"):
        read_settings(text)
