"""The settings of credentials: what the tables mean, and which contradictions are reported."""

from pathlib import Path

import pytest

from wharf.limits.config import read_settings
from wharf.limits.config.credential_settings import (
    ClaimNames,
    CredentialMode,
    CredentialSettings,
    QuestionKind,
    ResolverSettings,
)
from wharf.limits.core.callers.carriers import BasicForm
from wharf.limits.rules import InvalidFile


def read(text: str, folder: Path = Path()) -> CredentialSettings:
    return read_settings(text, "limits.toml", folder=folder).credentials


def test_only_listed_credentials_are_accepted_by_default() -> None:
    assert read("") == CredentialSettings() == read('credentials = "listed"')


def test_all_keys_of_opaque_credentials_are_read() -> None:
    settings = read(
        'credentials = "opaque"\ncredential_key_file = "key"\n'
        '[carriers]\nheaders = ["PRIVATE-TOKEN"]\ncookies = "session"\nquery = "private_token"\nbasic = "token_password"\n'
        '[opaque]\naccepted_on = "* /api/*"\nsessions_accepted_on = "GET /user/*"\naccepted_for = "1h"\naccepted_most = 7\nnew_most = 8\n',
        Path("/etc/wharf"),
    )

    assert (settings.mode, settings.key_file, settings.resolver) == (
        CredentialMode.OPAQUE,
        Path("/etc/wharf/key"),
        None,
    )
    carriers, opaque = settings.carriers, settings.opaque
    assert (carriers.headers, carriers.cookies, carriers.query) == (
        ("private-token",),
        ("session",),
        ("private_token",),
    )
    assert carriers.basic == (BasicForm.TOKEN_PASSWORD,)
    assert ("GET /user/*",) == opaque.sessions_accepted_on
    assert (opaque.accepted_on[0], opaque.accepted_ms, opaque.accepted_most, opaque.new_most) == (
        "* /api/*",
        3_600_000,
        7,
        8,
    )


def test_each_kind_of_question_has_its_own_names_of_claims() -> None:
    assert read('credentials = "resolved"').resolver == ResolverSettings()
    hook = read(
        'credentials = "resolved"\n[resolver]\nkind = "hook"\nurl = "https://a.example/x"\nuser = "name"'
    ).resolver
    assert hook is not None
    assert (hook.kind, hook.url) == (QuestionKind.HOOK, "https://a.example/x")
    assert hook.claims == ClaimNames(
        user="name", user_id="user_id", app="app", organization="organization", scopes="scopes"
    )


SECOND = 'credentials = "resolved"\n[resolver]\n'
JWT = 'credentials = "opaque"\n[jwt]\nissuer = "x"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[carriers]", "limits.toml:1:1: carriers: is only for unlisted credentials"),
        ('credential_key_file = "x"', "credential_key_file: is only for"),
        (
            'credentials = "opaque"\n[store]\nkind = "redis"',
            "1:1: credentials: processes that share counters need the same",
        ),
        (
            'credentials = "opaque"\n[carriers]\ncookies = "s"\n[opaque]\naccepted_on = "* /*"',
            "3:1: carriers.cookies: cannot be proved",
        ),
        (
            'credentials = "opaque"\n[opaque]\nsessions_accepted_on = "api"',
            "opaque.sessions_accepted_on: 'api' is not a pattern",
        ),
        (
            'credentials = "opaque"\n[carriers]\nheaders = "Authorization"',
            "carriers.headers: 'authorization' cannot be used",
        ),
        (
            'credentials = "opaque"\n[carriers]\nheaders = "X_Forwarded_For"',
            "carriers.headers: 'x_forwarded_for' cannot be used",
        ),
        (
            'credentials = "opaque"\n[carriers]\nbasic = "x"',
            'carriers.basic: "x" is not known: known are token_password',
        ),
        ('credentials = "opaque"\n[opaque]\naccepted_on = "api"', "opaque.accepted_on: 'api' is not a pattern"),
        ('credentials = "opaque"\n[resolver]', 'resolver: is only for `credentials = "resolved"`'),
        (SECOND + 'kind = "hook"', "resolver.url: '' is not a URL"),
        (SECOND + 'url = "http://a.example/x"', "would send credentials unencrypted"),
        (
            SECOND + 'kind = "introspection"\nurl = "https://a"',
            "resolver.kind: an authorization server needs `client_id`",
        ),
        (SECOND + 'client_id = "x"', "resolver.client_id: is only for `introspection`"),
        (SECOND + 'secret_file = "x"', "resolver.secret_file: is not used for `host`"),
        (SECOND + 'kind = "hook"\nurl = "https://a"\nsecret_file = "none"', "none cannot be read"),
        (SECOND + 'timeout = "1m"', 'resolver.timeout: "1m" is out of range: at most 30s'),
        (JWT, "jwt.keys_url: set either `keys_url` or `keys_file`"),
        (JWT + 'keys_file = "x"\nkeys_url = "https://a"', "jwt.keys_url: set either `keys_url` or `keys_file`"),
        (JWT + 'keys_file = "x"\nalgorithms = "HS256"', "jwt.algorithms: 'HS256' is not accepted"),
        ('credentials = "opaque"\n[jwt]\nkeys_file = "x"', "jwt.issuer: is missing"),
        ('credentials = "opaque"\n[revocation]\npath = "/x"', "revocation.path: is set alone"),
    ],
)
def test_contradictions_are_reported_with_their_line(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile) as error:
        read(text, tmp_path)

    assert problem in str(error.value)


def test_a_secret_file_must_be_private_and_long_enough(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    (tmp_path / "secret").chmod(0o644)
    with pytest.raises(InvalidFile) as error:
        read('credentials = "opaque"\n[revocation]\npath = "x"\nsecret_file = "secret"', tmp_path)

    assert "'x' is not a path" in str(error.value)
    assert f"run chmod 600 {tmp_path / 'secret'}" in str(error.value)
    assert "write at least 20 characters" in str(error.value)
