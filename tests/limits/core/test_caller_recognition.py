"""Callers from credentials, directory and addresses: every kind, its class and its fields."""

import base64
from ipaddress import ip_address
from typing import Any

import pytest

from wharf.limits.core.callers.addresses import (
    Address,
    InvalidProxies,
    build_address_scope,
    build_network_scope,
    find_address,
    parse_address,
    read_proxies,
)
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.credentials import (
    MalformedCredential,
    NoCredential,
    PresentedClient,
    PresentedToken,
    hash_secret,
    parse_token,
    read_credential,
)
from wharf.limits.core.callers.directory import (
    App,
    DirectoryToken,
    Installation,
    MemoryDirectory,
    Organization,
    Repository,
    User,
)
from wharf.limits.core.callers.recognition import (
    BAD_CREDENTIALS,
    UnrecognizedCredential,
    has_enterprise_ceiling,
    is_enterprise_account,
    recognize_caller,
)
from wharf.limits.core.resources import NO_RESOURCES, ResourceFinder

NOW_MS = 1_800_000_000_000
ADDRESS: Address = ip_address("192.0.2.7")


def make_directory(*tokens: DirectoryToken) -> MemoryDirectory:
    return MemoryDirectory(
        users={"ada": User(login="ada", id=5), "eve": User(login="eve")},
        organizations={
            "acme": Organization(login="acme", members=frozenset({"ada"})),
            "rich": Organization(login="rich", is_enterprise_tier=True, members=frozenset({"ada"})),
        },
        enterprises=frozenset({"corp"}),
        apps={
            7: App(id=7, owner="acme"),
            8: App(id=8, owner="rich", is_oauth=True, client_id="c8", client_secret_sha256=hash_secret("s")),
            9: App(id=9, owner="corp"),
            10: App(id=10, owner="acme", is_oauth=True, client_id="c10", client_secret_sha256=hash_secret("s")),
            11: App(id=11, owner="acme", client_id="c11", client_secret_sha256=hash_secret("s")),
        },
        installations={
            71: Installation(id=71, app=7, account="acme", repositories=4, members=2),
            72: Installation(id=72, app=7, account="rich", repositories=4, members=2),
            73: Installation(id=73, app=7, account="ada", repositories=4, members=2),
            74: Installation(id=74, app=7, account="corp"),
        },
        repositories={"acme/site": Repository(name="acme/site"), "rich/site": Repository(name="rich/site")},
        tokens={token.sha256: token for token in tokens},
        clients={"c8": App(id=8, owner="rich", is_oauth=True, client_secret_sha256=hash_secret("s")),
                 "c10": App(id=10, owner="acme", is_oauth=True, client_secret_sha256=hash_secret("s")),
                 "c11": App(id=11, owner="acme", client_secret_sha256=hash_secret("s")),
                 "c12": App(id=12, owner="acme", is_oauth=True)},
    )  # fmt: skip


def recognize(
    secret: str = "x",
    *,
    path: str = "/x",
    now_ms: int = NOW_MS,
    kind: CredentialKind = CredentialKind.PERSONAL_TOKEN,
    **token: Any,
) -> Caller | UnrecognizedCredential:
    """Recognize the token `secret`, which the directory has with these fields unless it is `y`."""
    known_secret = "x" if secret == "y" else secret
    entry = DirectoryToken(sha256=hash_secret(known_secret), kind=kind, **token)
    names = ResourceFinder().find_names("GET", path)
    return recognize_caller(parse_token(secret), ADDRESS, names, make_directory(entry), now_ms)


def get_class(caller: Caller | UnrecognizedCredential) -> CallerClass:
    assert isinstance(caller, Caller)
    return caller.caller_class


TOKEN = f"token:{hash_secret('x')[:16]}"


def test_a_request_without_a_credential_is_counted_by_its_address() -> None:
    assert recognize_caller(NoCredential(), ADDRESS, NO_RESOURCES, make_directory(), NOW_MS) == Caller(
        kind=CredentialKind.NONE,
        caller_class=CallerClass.NONE,
        owner="address:192.0.2.7",
        address="address:192.0.2.7",
        network="address:192.0.2.0/24",
        display_name="192.0.2.7",
    )


def test_a_token_of_a_user_is_recognized() -> None:
    expected = Caller(
        kind=CredentialKind.PERSONAL_TOKEN,
        caller_class=CallerClass.USER,
        owner="user:ada",
        address="address:192.0.2.7",
        display_name="user ID 5",
        user="user:ada",
        token=TOKEN,
        expires_ms=NOW_MS + 1,
        scopes=("repo",),
    )

    assert recognize(user="ada", expires_ms=NOW_MS + 1, scopes=("repo",)) == expected
    eve = recognize(user="eve")
    assert isinstance(eve, Caller)
    assert (eve.display_name, eve.owner) == ("user eve", "user:eve")


def test_a_token_of_an_installation_is_recognized() -> None:
    assert recognize(kind=CredentialKind.INSTALLATION_TOKEN, installation=71, expires_ms=NOW_MS + 1) == Caller(
        kind=CredentialKind.INSTALLATION_TOKEN,
        caller_class=CallerClass.INSTALLATION,
        owner="installation:71",
        address="address:192.0.2.7",
        display_name="installation ID 71",
        app="app:7",
        installation="installation:71",
        token=TOKEN,
        expires_ms=NOW_MS + 1,
        repositories=4,
        members=2,
    )


@pytest.mark.parametrize(
    ("installation", "caller_class", "members"),
    [
        (71, CallerClass.INSTALLATION, 2),
        (72, CallerClass.INSTALLATION_ENTERPRISE, 2),
        (73, CallerClass.INSTALLATION, 0),
        (74, CallerClass.INSTALLATION_ENTERPRISE, 0),
    ],
)
def test_only_installations_on_organizations_have_members(
    installation: int, caller_class: CallerClass, members: int
) -> None:
    caller = recognize(kind=CredentialKind.INSTALLATION_TOKEN, installation=installation)

    assert isinstance(caller, Caller)
    assert (caller.caller_class, caller.members) == (caller_class, members)


def test_a_token_of_a_workflow_is_recognized() -> None:
    assert recognize(kind=CredentialKind.WORKFLOW_TOKEN, repository="acme/site") == Caller(
        kind=CredentialKind.WORKFLOW_TOKEN,
        caller_class=CallerClass.WORKFLOW,
        owner="repository:acme/site",
        address="address:192.0.2.7",
        display_name="repository acme/site",
        repository="repository:acme/site",
        token=TOKEN,
    )


@pytest.mark.parametrize(
    ("repository", "path", "is_enterprise"),
    [
        ("acme/site", "/x", False),
        ("rich/site", "/x", True),
        ("acme/site", "/repos/rich/site", True),
        ("rich/site", "/repos/acme/site", False),
        ("acme/site", "/enterprises/corp", True),
    ],
)
def test_the_class_of_a_workflow_depends_on_the_owner_of_the_path(
    repository: str, path: str, is_enterprise: bool
) -> None:
    caller = recognize(path=path, kind=CredentialKind.WORKFLOW_TOKEN, repository=repository)

    assert (get_class(caller) is CallerClass.WORKFLOW_ENTERPRISE) is is_enterprise


@pytest.mark.parametrize(
    ("secret", "fields"),
    [
        ("y", {"user": "ada"}),
        ("x", {"user": "ada", "is_revoked": True}),
        ("x", {"user": "ada", "expires_ms": NOW_MS}),
        ("x", {"user": "nobody"}),
        ("x", {}),
        ("x", {"installation": 99, "kind": CredentialKind.INSTALLATION_TOKEN}),
        ("x", {"repository": "no/no", "kind": CredentialKind.WORKFLOW_TOKEN}),
        ("gho_x", {"user": "ada"}),
        ("ghs_x", {"user": "ada"}),
    ],
)
def test_a_token_that_is_not_valid_is_rejected(secret: str, fields: dict[str, Any]) -> None:
    assert recognize(secret, **fields) == UnrecognizedCredential(BAD_CREDENTIALS, is_unknown=secret == "y")


@pytest.mark.parametrize(
    ("secret", "kind", "fields"),
    [
        ("ghp_x", CredentialKind.PERSONAL_TOKEN, {"user": "ada"}),
        ("github_pat_x", CredentialKind.PERSONAL_TOKEN, {"user": "ada"}),
        ("gho_x", CredentialKind.OAUTH_TOKEN, {"user": "ada", "app": 8}),
        ("ghu_x", CredentialKind.APP_USER_TOKEN, {"user": "ada", "app": 7}),
        ("ghs_x", CredentialKind.INSTALLATION_TOKEN, {"installation": 71}),
        ("ghs_x", CredentialKind.WORKFLOW_TOKEN, {"repository": "acme/site"}),
    ],
)
def test_a_token_with_the_prefix_of_its_kind_is_valid(
    secret: str, kind: CredentialKind, fields: dict[str, Any]
) -> None:
    caller = recognize(secret, kind=kind, **fields)

    assert isinstance(caller, Caller)
    assert caller.kind is kind


@pytest.mark.parametrize(
    ("app", "login", "expected"),
    [
        (App(id=1, owner="acme"), "ada", False),
        (App(id=1, owner="rich"), "eve", True),
        (App(id=1, owner="corp"), "eve", True),
        (App(id=1, owner="rich", is_oauth=True), "ada", True),
        (App(id=1, owner="rich", is_oauth=True), "eve", False),
        (App(id=1, owner="acme", approved_by=frozenset({"rich"})), "ada", False),
        (App(id=1, owner="acme", is_oauth=True, approved_by=frozenset({"rich"})), "eve", False),
        (App(id=1, owner="acme", is_oauth=True, approved_by=frozenset({"acme", "nobody"})), "ada", False),
        (App(id=1, owner="acme", is_oauth=True, approved_by=frozenset({"rich"})), "ada", True),
    ],
)
def test_an_app_can_raise_the_ceiling_of_its_users(app: App, login: str, expected: bool) -> None:
    assert has_enterprise_ceiling(app, login, make_directory()) is expected


def test_the_app_of_a_token_is_shown_if_it_exists() -> None:
    known, unknown = (recognize(user="ada", app=app) for app in (9, 99))

    assert isinstance(known, Caller)
    assert isinstance(unknown, Caller)
    assert (known.app, known.caller_class, unknown.app, unknown.caller_class) == (
        "app:9",
        CallerClass.USER_ENTERPRISE,
        None,
        CallerClass.USER,
    )


@pytest.mark.parametrize(("name", "expected"), [("rich", True), ("acme", False), ("corp", True), ("nobody", False)])
def test_an_account_has_the_enterprise_tier(name: str, expected: bool) -> None:
    assert is_enterprise_account(name, make_directory()) is expected


# -- basic authentication ------------------------------------------------------------------------------------------


def encode_basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def recognize_basic(text: str) -> Caller | UnrecognizedCredential:
    tokens = [DirectoryToken(sha256=hash_secret("x"), kind=CredentialKind.PERSONAL_TOKEN, user="ada")]
    return recognize_caller(read_credential(encode_basic(text)), ADDRESS, NO_RESOURCES, make_directory(*tokens), NOW_MS)


def test_an_oauth_app_is_recognized_by_its_secret() -> None:
    assert recognize_basic("c10:s") == Caller(
        kind=CredentialKind.CLIENT_SECRET,
        caller_class=CallerClass.CLIENT,
        owner="app:10",
        address="address:192.0.2.7",
        display_name="app ID 10",
        app="app:10",
    )
    assert get_class(recognize_basic("c8:s")) is CallerClass.CLIENT_ENTERPRISE


@pytest.mark.parametrize("text", ["c10:wrong", "c10:", "c11:s", "c12:", "c12:s", "nobody:y", "ada:"])
def test_a_wrong_secret_of_an_app_is_rejected(text: str) -> None:
    assert recognize_basic(text) == UnrecognizedCredential(is_unknown=text in ("nobody:y", "ada:"))


@pytest.mark.parametrize("text", ["ada:x", "x:", ":x", "x:y", "anything:x"])
def test_a_token_is_recognized_as_name_or_password(text: str) -> None:
    caller = recognize_basic(text)

    assert isinstance(caller, Caller)
    assert caller.owner == "user:ada"


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, NoCredential()),
        ("", NoCredential()),
        ("  ", NoCredential()),
        ("token x", PresentedToken(hash_secret("x"))),
        (" BEARER  x ", PresentedToken(hash_secret("x"))),
        ("Bearer " + "x" * 4_096, PresentedToken(hash_secret("x" * 4_096))),
        ("Bearer " + "x" * 4_097, MalformedCredential("Bad credentials")),
        ("Bearer", MalformedCredential("Bad credentials")),
        ("Bearer a b", MalformedCredential("Bad credentials")),
        ("Bearer a\xa0", MalformedCredential("Bad credentials")),
        ("Bearer \x85a", MalformedCredential("Bad credentials")),
        ("Bearer a\x1c", MalformedCredential("Bad credentials")),
        ("Bearer  a\t", PresentedToken(hash_secret("a"))),
        ("Bearer \u00e9", MalformedCredential("Bad credentials")),
        (
            encode_basic("a:b:c"),
            PresentedClient("a", hash_secret("b:c"), PresentedToken(hash_secret("b:c"), "a"), PresentedToken(hash_secret("a"))),
        ),
        (encode_basic("a"), MalformedCredential("Bad credentials")),
        (encode_basic(":"), MalformedCredential("Bad credentials")),
        ("Basic ?", MalformedCredential("Bad credentials")),
        ("Basic /w==", MalformedCredential("Bad credentials")),
        ("Basic " + "A" * 4_097, MalformedCredential("Bad credentials")),
    ],
)  # fmt: skip
def test_the_authorization_header_is_read(authorization: str | None, expected: object) -> None:
    assert read_credential(authorization) == expected


def test_the_longest_basic_credential_is_read() -> None:
    text = "a:" + "b" * 3_070

    assert len(encode_basic(text)) == len("Basic ") + 4_096
    assert isinstance(read_credential(encode_basic(text)), PresentedClient)


@pytest.mark.parametrize(
    ("query", "is_refused"),
    [
        ("access_token=x", True),
        ("a=1&client_secret=x", True),
        ("access_token", True),
        ("my_access_token=x", False),
        ("a=access_token", False),
        ("", False),
    ],
)
def test_credentials_in_the_query_are_rejected(query: str, is_refused: bool) -> None:
    credential = read_credential("Bearer x", query)

    assert isinstance(credential, MalformedCredential) is is_refused


def test_an_unknown_scheme_is_rejected_with_advice() -> None:
    credential = read_credential("Digest x")

    assert isinstance(credential, MalformedCredential)
    assert recognize_caller(credential, ADDRESS, NO_RESOURCES, make_directory(), NOW_MS) == UnrecognizedCredential(
        credential.message
    )
    assert "Send 'Bearer'" in credential.message


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        (" 192.0.2.7:80 ", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:80", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", None),
        ("localhost", None),
        ("192.0.2.256", None),
    ],
)
def test_an_address_is_parsed(text: str, expected: str | None) -> None:
    address = parse_address(text)

    assert (None if address is None else str(address)) == expected


@pytest.mark.parametrize(
    ("text", "scope", "network"),
    [
        ("192.0.2.7", "address:192.0.2.7", "address:192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "address:2001:db8:1:2::/64", "address:2001:db8:1::/48"),
    ],
)
def test_addresses_are_counted_alone_or_by_network(text: str, scope: str, network: str) -> None:
    address = parse_address(text)
    assert address is not None

    assert (build_address_scope(address), build_network_scope(address)) == (scope, network)


FORWARDED_FOR = ("203.0.113.1, 10.0.0.9", "192.0.2.9, 10.0.0.7")


@pytest.mark.parametrize(
    ("peer", "settings", "expected"),
    [
        ("10.0.0.1", {}, "10.0.0.1"),
        ("10.0.0.1", {"hops": 1}, "10.0.0.7"),
        ("10.0.0.1", {"hops": 2}, "192.0.2.9"),
        ("10.0.0.1", {"hops": 9}, "203.0.113.1"),
        ("10.0.0.1", {"trusted": ["10.0.0.0/8"]}, "192.0.2.9"),
        ("10.0.0.1", {"trusted": ["10.0.0.0/8", "192.0.2.0/24"]}, "203.0.113.1"),
        ("10.0.0.1", {"trusted": ["0.0.0.0/0"]}, "203.0.113.1"),
        ("11.0.0.1", {"trusted": ["10.0.0.0/8"]}, "11.0.0.1"),
        ("10.0.0.1", {"hops": 1, "should_read_forwarded": True}, "198.51.100.4"),
        ("10.0.0.1", {"hops": 2, "should_read_forwarded": True}, "198.51.100.4"),
    ],
)
def test_the_address_of_a_caller_is_found_behind_proxies(peer: str, settings: dict[str, Any], expected: str) -> None:
    forwarded = ("for=unknown;proto=https", 'proto=http; For = "198.51.100.4:80"')

    found = find_address(peer, read_proxies(**settings), forwarded_for=FORWARDED_FOR, forwarded=forwarded)

    assert str(found) == expected


@pytest.mark.parametrize("settings", [{"hops": 1}, {"trusted": ["10.0.0.0/8"]}])
def test_without_the_header_of_a_proxy_the_peer_is_the_caller(settings: dict[str, Any]) -> None:
    for entries in ((), ("",), ("what",)):
        assert str(find_address("10.0.0.1", read_proxies(**settings), forwarded_for=entries)) == "10.0.0.1"


def test_a_peer_without_an_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="'socket' is not an IP address"):
        find_address("socket", read_proxies())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hops": -1}, "`hops` is -1"),
        ({"trusted": ["10.0.0.1/8"]}, "`trusted`"),
        ({"trusted": ["a"], "hops": 1}, "both"),
    ],
)
def test_proxies_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProxies, match=message):
        read_proxies(**settings)


@pytest.mark.parametrize(("count", "address"), [(99, "192.0.2.1"), (100, "10.0.0.1"), (7_000, "10.0.0.1")])
@pytest.mark.parametrize("should_read_forwarded", [False, True])
def test_the_last_hundred_entries_of_proxies_are_read(count: int, address: str, should_read_forwarded: bool) -> None:
    proxies = read_proxies(trusted=["127.0.0.1", "10.0.0.0/8"], should_read_forwarded=should_read_forwarded)
    prefix = "for=" if should_read_forwarded else ""
    line = ", ".join(f"{prefix}{entry}" for entry in ["192.0.2.1", *["10.0.0.1"] * count])

    found = find_address("127.0.0.1", proxies, forwarded_for=[line], forwarded=[line])

    assert str(found) == address
