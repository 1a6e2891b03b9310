"""Commands about who may do what: tokens, policies, roles, ways to log in, and the logins themselves."""

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest

from tests.agent.processes import running
from tests.agent.test_access_control import ON, bootstrapped
from tests.agent.test_processes import an_agent
from tests.agent.test_providers import served
from tests.cli.asking import Person, a_file, a_person
from tests.cluster.api.login_provider import CLIENT_ID, CLIENT_SECRET, LoginProvider
from tests.waiting import wait_until
from wharf.contract.model.times import SECOND

READER = 'namespace "default" { policy = "read" }'


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    """Who holds the first token."""
    for name in ("WHARF_ADDR", "WHARF_NAMESPACE", "NOMAD_ADDR", "NOMAD_TOKEN", "WHARF_LOGIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WHARF_TOKEN", "")
    with a_person(capsys, access=True) as person:
        monkeypatch.setenv("WHARF_TOKEN", person.does("acl", "bootstrap", "-t", "{{.SecretID}}").strip())
        yield person


def in_yaml(folder: Path, document: object, name: str = "method.yaml") -> str:
    return a_file(folder, msgspec.yaml.encode(document).decode(), name)


def a_method(provider: LoginProvider, **fields: object) -> dict[str, object]:
    config = {
        "JWTValidationPubKeys": [provider.public_pem],
        "BoundAudiences": [CLIENT_ID],
        "ClaimMappings": {"email": "email", "team": "team"},
    }
    return {"Name": "company", "Type": "JWT", "TokenLocality": "local", "MaxTokenTTL": "1h", "Config": config, **fields}


def a_provider(person: Person) -> LoginProvider:
    return LoginProvider(lambda: person.world.now_ns() // SECOND)


def test_nobody_does_anything_without_a_token_and_is_told_how_to_name_one(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHARF_TOKEN", "")
    none = person.wharf("job", "status")
    wrong = person.wharf("job", "status", "--token", "11111111-1111-4111-8111-111111111111")
    again = person.wharf("acl", "bootstrap")

    assert none.err == "wharf: Permission denied: no token was given; name one by --token or WHARF_TOKEN\n"
    assert (none.code, wrong.code, again.code) == (1, 1, 1)
    assert "the token that was given may not do this, or is none here" in wrong.err
    assert again.err.startswith("wharf: ACL bootstrap already done (reset index: ")


def test_a_token_carries_policies_and_roles_and_is_taken_back(person: Person, tmp_path: Path) -> None:
    person.does("acl", "policy", "apply", "reader", a_file(tmp_path, READER, "reader.hcl"))
    person.does("acl", "role", "create", "--name", "web-team", "--policy", "reader")
    made = person.does("acl", "token", "create", "--name", "x", "--role-name", "web-team", "--json")
    token = msgspec.json.decode(made)

    own = person.does("acl", "token", "self", "--token", token["SecretID"])
    may_read = person.wharf("job", "status", "--token", token["SecretID"])
    may_write = person.wharf("namespace", "apply", "shop", "--token", token["SecretID"])
    person.does("acl", "token", "delete", token["AccessorID"][:8])
    gone = person.wharf("job", "status", "--token", token["SecretID"])

    assert "Roles     web-team" in own
    assert (may_read.code, may_write.code, gone.code) == (0, 1, 1)


def test_a_policy_that_is_wrong_is_told_in_one_list(person: Person, tmp_path: Path) -> None:
    ended = person.wharf("acl", "policy", "apply", "bad name", a_file(tmp_path, "nonsense {", "bad.hcl"))

    assert ended.code == 1
    assert [line.partition(" ")[0] for line in ended.err.splitlines()] == ["wharf:"] * 2
    assert "error occurred" not in ended.err


def test_a_way_to_log_in_is_made_shown_changed_and_deleted(person: Person, tmp_path: Path) -> None:
    provider = a_provider(person)
    made = person.does("acl", "auth-method", "create", in_yaml(tmp_path, a_method(provider)))
    listed = person.does("acl", "auth-method", "list")
    changed = person.does(
        "acl", "auth-method", "update", in_yaml(tmp_path, a_method(provider, MaxTokenTTL="2h", Default=True))
    )
    person.does("acl", "auth-method", "delete", "company")

    assert ["Name", "company"] in [line.split() for line in made.splitlines()]
    assert listed.splitlines()[1].split() == ["company", "JWT", "no"]
    assert ["Default", "yes"] in [line.split() for line in changed.splitlines()]
    assert person.does("acl", "auth-method", "list") == "There is no way to log in.\n"


def test_what_is_wrong_with_a_way_to_log_in_is_told_by_field(person: Person, tmp_path: Path) -> None:
    unknown = person.wharf("acl", "auth-method", "create", in_yaml(tmp_path, {"Name": "a", "Kind": "JWT"}))
    wrong = person.wharf("acl", "auth-method", "create", in_yaml(tmp_path, {"Name": "a", "Type": "SAML"}))

    assert "there is no field Kind: there are Name, Type" in unknown.err
    assert (unknown.code, wrong.code) == (1, 1)
    assert "SAML" in wrong.err


def test_a_rule_says_what_those_who_log_in_may_do(person: Person, tmp_path: Path) -> None:
    person.does("acl", "auth-method", "create", in_yaml(tmp_path, a_method(a_provider(person))))
    words = ("--auth-method", "company", "--bind-type", "policy", "--bind-name", "reader")
    made = person.does("acl", "binding-rule", "create", *words, "-t", "{{.ID}}").strip()
    person.does("acl", "binding-rule", "update", "--selector", 'value.team == "web"', made[:8])
    shown = person.does("acl", "binding-rule", "info", made[:8])
    listed = person.does("acl", "binding-rule", "list")
    person.does("acl", "binding-rule", "delete", made[:8])
    gone = person.wharf("acl", "binding-rule", "info", made[:8])

    assert 'To those with  value.team == "web"' in shown
    assert listed.splitlines()[1].split()[:4] == [made[:8], "company", "policy", "reader"]
    assert person.does("acl", "binding-rule", "list") == "There are no rules.\n"
    assert gone.err == f"wharf: there is no rule {made[:8]}; `wharf acl binding-rule list` lists all\n"


def test_a_providers_token_becomes_one_of_ours(person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = a_provider(person)
    person.does("acl", "policy", "apply", "reader", a_file(tmp_path, READER, "reader.hcl"))
    person.does("acl", "auth-method", "create", in_yaml(tmp_path, a_method(provider, Default=True)))
    rule = ("--auth-method", "company", "--bind-type", "policy", "--bind-name", "reader")
    person.does("acl", "binding-rule", "create", *rule)
    monkeypatch.setenv("WHARF_TOKEN", "")

    unnamed = person.wharf("login")
    missing = person.wharf("login", "--method", "other", "--login-token", "x")
    forged = person.wharf("login", "--login-token", "a.b.c")
    secret = person.does("login", "--login-token", provider.identity(), "-t", "{{.SecretID}}").strip()

    assert "company wants a token of its provider" in unnamed.err
    assert missing.err == "wharf: there is no way to log in named other; there are: company\n"
    assert (unnamed.code, missing.code, forged.code) == (1, 1, 1)
    assert person.wharf("job", "status", "--token", secret).code == 0


def test_a_node_is_introduced_by_a_token(person: Person) -> None:
    alone = person.does("node", "intro", "create", "--node-name", "gpu-7", "--ttl", "10m")
    too_long = person.wharf("node", "intro", "create", "--ttl", "1h")

    assert alone.count(".") == 2
    assert len(alone.splitlines()) == 1
    assert too_long.err == "wharf: an introduction token is valid for 1s to 30m0s; 1h0m0s requested\n"


def test_where_access_control_is_off_it_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with a_person(capsys) as person:
        ended = person.wharf("node", "intro", "create")

    assert ended.err.startswith("wharf: ACL support disabled: everybody may do everything here; ")


def test_somebody_logs_in_with_a_browser(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        issuer = f"http://127.0.0.1:{listening.getsockname()[1]}"
        provider = LoginProvider(lambda: int(time.time()), issuer=issuer)
        file = an_agent(tmp_path / "a", ON)
        with served(provider.app, listening), running(tmp_path / "a", "agent", "--config", str(file)) as agent:
            agent.wait_ready()
            config = {
                "OIDCDiscoveryURL": issuer,
                "OIDCClientID": CLIENT_ID,
                "OIDCClientSecret": CLIENT_SECRET,
                "AllowedRedirectURIs": [f"http://localhost:{port}/oidc/callback"],
            }
            environment = {"WHARF_ADDR": agent.address, "WHARF_TOKEN": bootstrapped(agent)["SecretID"]}
            method = in_yaml(tmp_path, a_method(provider, Name="sso", Type="OIDC", Config=config))
            typed(tmp_path, environment, "acl", "auth-method", "create", method).communicate(timeout=60)
            rule = ("--auth-method", "sso", "--bind-type", "management")
            typed(tmp_path, environment, "acl", "binding-rule", "create", *rule).communicate(timeout=60)
            words = ("login", "--method", "sso", "--oidc-callback-addr", f"127.0.0.1:{port}")
            login = typed(tmp_path, {"WHARF_ADDR": agent.address}, *words)

            assert login.stderr is not None
            url = next(line.strip() for line in login.stderr if "http" in line)
            back = provider.visit(url)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/oidc/callback?{urlencode(back)}", timeout=10) as page:
                told = page.read().decode()
            out, _ = login.communicate(timeout=60)

            assert "You are logged in" in told
            assert login.returncode == 0
            assert ["Type", "management"] in [line.split() for line in out.splitlines()]
            assert "Use it: export WHARF_TOKEN=" in out


def test_the_log_of_an_agent_is_followed_until_nobody_wants_more(tmp_path: Path) -> None:
    with running(tmp_path / "a", "dev", "--port", "0") as agent:
        agent.wait_ready()
        with typed(tmp_path, {"WHARF_ADDR": agent.address}, "monitor", "--log-level", "debug") as monitor:
            told: list[str] = []
            reading = threading.Thread(target=lambda: told.extend(monitor.stdout or ()))
            reading.start()

            def is_told() -> bool:
                agent.signal(signal.SIGHUP)  # Which is logged; the monitor may not be listening yet.
                return any("configuration reloaded" in line for line in told)

            try:
                wait_until(is_told, what="what is logged is shown")
                monitor.send_signal(signal.SIGINT)
                monitor.wait(timeout=60)
            finally:
                monitor.kill()
                reading.join(timeout=60)

            assert monitor.returncode == 0
            assert monitor.stderr is not None
            assert monitor.stderr.read() == ""


def typed(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """A command that goes on while the test does."""
    return subprocess.Popen(
        [sys.executable, "-m", "wharf", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **environment},
    )
