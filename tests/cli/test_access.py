"""The commands about access control: tokens, policies, roles, auth methods and logins."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec
import pytest

from tests.agent.processes import running
from tests.agent.test_access_control import ACL_ENABLED, bootstrap_access
from tests.agent.test_processes import write_agent_config
from tests.agent.test_providers import serve_in_thread
from tests.cli.terminal import Terminal, open_terminal, write_file
from tests.cluster.api.login_provider import CLIENT_ID, CLIENT_SECRET, LoginProvider
from tests.waiting import once_a_second, wait_until
from wharf.cli.common.server_commands import suggest_token
from wharf.cluster.access import Caller, CallerKind
from wharf.cluster.access.denials import describe_denial
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.times import SECOND

READER = 'namespace "default" { policy = "read" }'


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal with the first management token."""
    monkeypatch.setenv("WHARF_TOKEN", "")
    with open_terminal(capsys, access=True) as terminal:
        monkeypatch.setenv("WHARF_TOKEN", terminal.run_ok("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        yield terminal


def write_yaml(folder: Path, document: object, name: str = "method.yaml") -> str:
    return write_file(folder, msgspec.yaml.encode(document).decode(), name)


def build_auth_method(provider: LoginProvider, **fields: object) -> dict[str, object]:
    config = {
        "JWTValidationPubKeys": [provider.public_pem],
        "BoundAudiences": [CLIENT_ID],
        "ClaimMappings": {"email": "email", "team": "team"},
    }
    return {"Name": "company", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h", "Config": config, **fields}


def build_provider(terminal: Terminal) -> LoginProvider:
    return LoginProvider(lambda: terminal.world.now_ns() // SECOND)


def test_a_request_without_a_token_is_refused_with_a_hint_how_to_set_one(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHARF_TOKEN", "")
    without_token = terminal.run("job", "status")
    invalid = terminal.run("job", "status", "--token", "11111111-1111-4111-8111-111111111111")
    repeated = terminal.run("acl", "bootstrap")

    assert without_token.err == (
        "wharf: Permission denied: the request had no token; it needs the capability list-jobs in namespace "
        '"default"; set --token or WHARF_TOKEN\n'
    )
    assert (without_token.code, invalid.code, repeated.code) == (1, 1, 1)
    assert "the token does not exist: it was deleted, or belongs to another cluster" in invalid.err
    assert repeated.err.startswith("wharf: ACL bootstrap already done (reset index: ")


def test_a_token_has_policies_and_roles_until_it_is_deleted(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("acl", "policy", "apply", "reader", write_file(tmp_path, READER, "reader.hcl"))
    terminal.run_ok("acl", "role", "create", "--name", "web-team", "--policy", "reader")
    created = terminal.run_ok("acl", "token", "create", "--name", "x", "--role-name", "web-team", "--json")
    token = msgspec.json.decode(created)

    own_token = terminal.run_ok("acl", "token", "self", "--token", token["SecretID"])
    may_read = terminal.run("job", "status", "--token", token["SecretID"])
    may_write = terminal.run("namespace", "apply", "shop", "--token", token["SecretID"])
    terminal.run_ok("acl", "token", "delete", token["AccessorID"][:8])
    deleted = terminal.run("job", "status", "--token", token["SecretID"])

    assert "Roles     web-team" in own_token
    assert (may_read.code, may_write.code, deleted.code) == (0, 1, 1)


def test_an_invalid_policy_is_reported_in_one_list(terminal: Terminal, tmp_path: Path) -> None:
    result = terminal.run("acl", "policy", "apply", "bad name", write_file(tmp_path, "nonsense {", "bad.hcl"))

    assert result.code == 1
    assert [line.partition(" ")[0] for line in result.err.splitlines()] == ["wharf:"] * 2
    assert "error occurred" not in result.err


def test_an_auth_method_is_created_shown_changed_and_deleted(terminal: Terminal, tmp_path: Path) -> None:
    provider = build_provider(terminal)
    created = terminal.run_ok("acl", "auth-method", "create", write_yaml(tmp_path, build_auth_method(provider)))
    listed = terminal.run_ok("acl", "auth-method", "list")
    changed = terminal.run_ok(
        "acl",
        "auth-method",
        "update",
        write_yaml(tmp_path, build_auth_method(provider, MaxTokenTTL="2h", Default=True)),
    )
    terminal.run_ok("acl", "auth-method", "delete", "company")

    assert ["Name", "company"] in [line.split() for line in created.splitlines()]
    assert listed.splitlines()[1].split() == ["company", "JWT", "no"]
    assert ["Default", "yes"] in [line.split() for line in changed.splitlines()]
    assert terminal.run_ok("acl", "auth-method", "list") == "No auth methods.\n"


def test_an_invalid_auth_method_is_reported_by_field(terminal: Terminal, tmp_path: Path) -> None:
    unknown = terminal.run("acl", "auth-method", "create", write_yaml(tmp_path, {"Name": "a", "Kind": "JWT"}))
    invalid = terminal.run("acl", "auth-method", "create", write_yaml(tmp_path, {"Name": "a", "Type": "SAML"}))

    assert "unknown field Kind; the fields are Name, Type" in unknown.err
    assert (unknown.code, invalid.code) == (1, 1)
    assert "SAML" in invalid.err


def test_a_binding_rule_is_created_changed_shown_and_deleted(terminal: Terminal, tmp_path: Path) -> None:
    terminal.run_ok("acl", "auth-method", "create", write_yaml(tmp_path, build_auth_method(build_provider(terminal))))
    words = ("--auth-method", "company", "--bind-type", "policy", "--bind-name", "reader")
    created = terminal.run_ok("acl", "binding-rule", "create", *words, "-t", "{{.ID}}").strip()
    terminal.run_ok("acl", "binding-rule", "update", "--selector", 'value.team == "web"', created[:8])
    printed = terminal.run_ok("acl", "binding-rule", "info", created[:8])
    listed = terminal.run_ok("acl", "binding-rule", "list")
    terminal.run_ok("acl", "binding-rule", "delete", created[:8])
    deleted = terminal.run("acl", "binding-rule", "info", created[:8])

    assert 'Selector   value.team == "web"' in printed
    assert listed.splitlines()[1].split()[:4] == [created[:8], "company", "policy", "reader"]
    assert terminal.run_ok("acl", "binding-rule", "list") == "No binding rules.\n"
    assert deleted.err == f"wharf: binding rule {created[:8]} does not exist; `wharf acl binding-rule list` lists all\n"


def test_login_exchanges_the_token_of_an_identity_provider_for_a_wharf_token(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = build_provider(terminal)
    without_any_method = terminal.run("login")
    terminal.run_ok("acl", "policy", "apply", "reader", write_file(tmp_path, READER, "reader.hcl"))
    terminal.run_ok("acl", "auth-method", "create", write_yaml(tmp_path, build_auth_method(provider, Default=True)))
    rule = ("--auth-method", "company", "--bind-type", "policy", "--bind-name", "reader")
    terminal.run_ok("acl", "binding-rule", "create", *rule)
    monkeypatch.setenv("WHARF_TOKEN", "")

    without_method = terminal.run("login")
    missing = terminal.run("login", "--method", "other", "--login-token", "x")
    with_forged_token = terminal.run("login", "--login-token", "a.b.c")
    secret = terminal.run_ok("login", "--login-token", provider.identity(), "-t", "{{.SecretID}}").strip()

    assert "no default auth method: the cluster has no auth methods" in without_any_method.err
    assert "auth method company requires a token of its identity provider" in without_method.err
    assert missing.err == "wharf: auth method other does not exist; choose one with --method: company\n"
    assert (without_method.code, missing.code, with_forged_token.code) == (1, 1, 1)
    assert terminal.run("job", "status", "--token", secret).code == 0


def test_an_introduction_token_is_printed_and_its_lifetime_is_limited(terminal: Terminal) -> None:
    token_only = terminal.run_ok("node", "intro", "create", "--node-name", "gpu-7", "--ttl", "10m")
    too_long = terminal.run("node", "intro", "create", "--ttl", "1h")

    assert token_only.count(".") == 2
    assert len(token_only.splitlines()) == 1
    assert too_long.err == "wharf: an introduction token is valid for 1s to 30m0s; 1h0m0s requested\n"


def test_without_access_control_a_command_about_it_reports_that_it_is_off(capsys: pytest.CaptureFixture[str]) -> None:
    with open_terminal(capsys) as terminal:
        result = terminal.run("node", "intro", "create")

    assert result.err.startswith("wharf: ACL support disabled: every request is allowed; ")


def test_a_user_logs_in_with_a_browser(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        issuer = f"http://127.0.0.1:{listening.getsockname()[1]}"
        provider = LoginProvider(lambda: int(time.time()), issuer=issuer)
        file = write_agent_config(tmp_path / "a", ACL_ENABLED)
        with serve_in_thread(provider.app, listening), running(tmp_path / "a", "agent", "--config", str(file)) as agent:
            agent.wait_ready()
            config = {
                "OIDCDiscoveryURL": issuer,
                "OIDCClientID": CLIENT_ID,
                "OIDCClientSecret": CLIENT_SECRET,
                "AllowedRedirectURIs": [f"http://localhost:{port}/oidc/callback"],
            }
            environment = {"WHARF_ADDR": agent.address, "WHARF_TOKEN": bootstrap_access(agent)["SecretID"]}
            method = write_yaml(tmp_path, build_auth_method(provider, Name="sso", Type="OIDC", Config=config))
            start_command(tmp_path, environment, "acl", "auth-method", "create", method).communicate(timeout=60)
            rule = ("--auth-method", "sso", "--bind-type", "management")
            start_command(tmp_path, environment, "acl", "binding-rule", "create", *rule).communicate(timeout=60)
            words = ("login", "--method", "sso", "--oidc-callback-addr", f"127.0.0.1:{port}")
            login = start_command(tmp_path, {"WHARF_ADDR": agent.address}, *words)

            assert login.stderr is not None
            url = next(line.strip() for line in login.stderr if "state=" in line)
            redirect = provider.visit(url)
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/oidc/callback?{urlencode(redirect)}", timeout=10
            ) as page:
                output = page.read().decode()
            out, _ = login.communicate(timeout=60)

            assert "You are logged in" in output
            assert login.returncode == 0
            assert ["Type", "management"] in [line.split() for line in out.splitlines()]
            assert "To use it: export WHARF_TOKEN=" in out


def test_the_log_of_an_agent_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        with start_command(tmp_path, {"WHARF_ADDR": agent.address}, "monitor", "--log-level", "debug") as monitor:
            output: list[str] = []
            reader_thread = threading.Thread(target=lambda: output.extend(monitor.stdout or ()))
            reader_thread.start()

            def reload_and_look() -> bool:
                agent.signal(
                    signal.SIGHUP
                )  # The agent logs it. Repeat it, because the monitor may not be connected yet.
                return any("configuration reloaded" in line for line in output)

            try:
                wait_until(once_a_second(reload_and_look), what="the monitor prints the reload")
                monitor.send_signal(signal.SIGINT)
                monitor.wait(timeout=60)
            finally:
                monitor.kill()
                reader_thread.join(timeout=60)

            assert monitor.returncode == 130
            assert monitor.stderr is not None
            lines = monitor.stderr.read().splitlines()
            assert [line for line in lines if not line.startswith("waiting for a reply")] == ["", "wharf: stopped"]


def start_command(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """Start a command that runs beside the test."""
    return subprocess.Popen(
        [sys.executable, "-m", "wharf", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
    )


@pytest.mark.parametrize("words", [("delete",), ("info",), ("update", "--name", "x")], ids=" ".join)
def test_a_secret_in_place_of_an_accessor_id_is_not_repeated_and_not_sent(
    terminal: Terminal, words: tuple[str, ...]
) -> None:
    other = msgspec.json.decode(terminal.run_ok("acl", "token", "create", "--type", "management", "--json"))
    own_secret = os.environ["WHARF_TOKEN"]

    of_other = terminal.run("acl", "token", *words, other["SecretID"])
    of_own = terminal.run("acl", "token", *words, own_secret)

    assert (of_other.code, of_own.code, of_other.out + of_own.out) == (1, 1, "")
    assert other["SecretID"] not in of_other.err
    assert own_secret not in of_own.err
    assert "`wharf acl token list` lists the accessor ids; a secret is not accepted" in of_other.err
    assert "this is the secret of your own token" in of_own.err
    assert "`wharf acl token self` shows it" in of_own.err


def test_a_token_without_permission_for_the_list_shows_itself_by_its_accessor_id(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.run_ok("acl", "policy", "apply", "reader", write_file(tmp_path, READER, "reader.hcl"))
    own = msgspec.json.decode(terminal.run_ok("acl", "token", "create", "--policy", "reader", "--json"))

    shown = terminal.run_ok("acl", "token", "info", own["AccessorID"], "--token", own["SecretID"])

    assert own["AccessorID"] in shown


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        ("bogus", ""),
        ("5f8a4b0e-2a53-4d0c-9a57-1f3f1f6f1c11", ""),
        ("e30.e30.e30", " (failed to parse signed token: "),
    ],
)
def test_an_unknown_token_is_reported_as_such_by_the_command_that_shows_it(
    terminal: Terminal, secret: str, problem: str
) -> None:
    result = terminal.run("acl", "token", "self", "--token", secret)

    assert result.code == 1
    assert result.err.startswith(f"wharf: no such token: it does not exist, was deleted or has expired{problem}")
    assert result.err.endswith("; set another one with --token or WHARF_TOKEN\n")
    assert "acl token self" not in result.err


@pytest.mark.parametrize("kind", list(CallerKind))
def test_only_a_token_that_the_servers_know_is_shown_by_the_advised_command(kind: CallerKind) -> None:
    caller = Caller(kind=kind, token=Token(accessor_id="a1", name="ci"))
    detail = describe_denial(caller, permissions.READ_JOB, namespace="web")

    advice = suggest_token(detail, has_token=kind is not CallerKind.ANONYMOUS)

    is_unknown = kind in (CallerKind.UNKNOWN, CallerKind.EXPIRED, CallerKind.UNVERIFIED)
    assert (is_unknown or kind is CallerKind.ANONYMOUS) is ("acl token self" not in advice)
    assert is_unknown is ("set another one" in advice)


A_SECRET: Final = "5f8a4b0e-2a53-4d0c-9a57-1f3f1f6f1c11"
A_JWT: Final = f"{'a' * 40}.{'b' * 40}.{'c' * 40}"


@pytest.mark.parametrize(
    "words",
    [
        ("acl", "token", "self", A_SECRET),
        ("acl", "bootstrap", A_SECRET),
        ("acl", "tokn", A_SECRET),
        ("login", A_SECRET),
        ("login", A_JWT),
        ("login", "--method", A_JWT),
        ("job", "status", A_JWT),
        ("job", "status", f"--token={A_SECRET}", A_SECRET),
        ("var", "put", "db", "s3cr3t-value"),
        ("var", "put", "db", "=s3cr3t-value"),
    ],
    ids=" ".join,
)
def test_an_error_repeats_no_argument_that_may_be_a_secret(terminal: Terminal, words: tuple[str, ...]) -> None:
    result = terminal.run(*words)

    assert result.code != 0
    assert not any(secret in result.err for secret in (A_SECRET, A_JWT, "s3cr3t-value"))
