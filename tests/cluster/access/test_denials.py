"""What a denial says to people: the missing permission and the name of the token that was sent."""

import pytest

from wharf.cluster.access import UNCHECKED_CALLER, Caller, CallerKind, Rights, compile_rights, require_rights
from wharf.cluster.access.denials import MAX_NAME_CHARS, describe_denial
from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import Permission
from wharf.contract.model.acl.tokens import Token
from wharf.contract.model.refusal import Refusal
from wharf.contract.wire.errors import MAX_DETAIL_BYTES, decode_detail, encode_detail

READS_APPS = ('namespace "apps" { policy = "read" }',)


def make_caller(kind: CallerKind = CallerKind.CLIENT, *, name: str = "ci", rights: Rights | None = None) -> Caller:
    token = Token(accessor_id="a1", name=name)
    has_token = kind in (CallerKind.CLIENT, CallerKind.EXPIRED)
    return Caller(kind=kind, token=token if has_token else None, rights=rights or compile_rights(READS_APPS))


@pytest.mark.parametrize(
    ("permission", "text"),
    [
        (
            permissions.REGISTER_JOB,
            'token "ci" lacks the capability submit-job (or register-job) in namespace "web"',
        ),
        (permissions.READ_NODE, 'token "ci" lacks node { policy = "read" }'),
        (permissions.WRITE_VARIABLE, 'token "ci" lacks the capability write on variables at "p" in namespace "web"'),
        (permissions.READ_NODE_POOL, 'token "ci" lacks the capability read on node pool "l"'),
        (permissions.MOUNT_HOST_VOLUME_READ_WRITE, 'token "ci" lacks the capability mount-readwrite on host volume "l"'),
        (permissions.SAVE_SNAPSHOT, 'token "ci" lacks the operator capability snapshot-save'),
        (permissions.MANAGEMENT_TOKEN, 'token "ci" lacks the rights of a management token'),
        (permissions.READ_NAMESPACE, 'token "ci" lacks any capability in namespace "web"'),
        (
            permissions.EXEC_ON_NODE,
            'token "ci" lacks the capability alloc-exec in namespace "web", or the capability alloc-node-exec in namespace "web"',
        ),
        (permissions.LIST_SCALING_POLICIES, 'token "ci" lacks the capability list-scaling-policies in namespace "web"'),
        (permissions.ANY_TOKEN, 'token "ci" lacks a valid token'),
    ],
)  # fmt: skip
def test_a_denial_names_the_missing_permission(permission: Permission, text: str) -> None:
    assert describe_denial(make_caller(), permission, namespace="web", path="p", label="l") == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (CallerKind.ANONYMOUS, 'the request had no token; it needs the capability read-job in namespace "web"'),
        (CallerKind.UNKNOWN, "the token does not exist: it was deleted, or belongs to another cluster"),
        (CallerKind.EXPIRED, 'token "ci" has expired'),
        (CallerKind.UNVERIFIED, "the token is neither the secret of a token nor a valid identity of a task"),
        (CallerKind.WORKLOAD, 'the identity of the task lacks the capability read-job in namespace "web"'),
    ],
)
def test_a_denial_tells_an_invalid_token_from_a_weak_one(kind: CallerKind, text: str) -> None:
    assert describe_denial(make_caller(kind), permissions.READ_JOB, namespace="web") == text


@pytest.mark.parametrize(
    ("permission", "namespace", "text"),
    [
        (permissions.READ_JOB, "web", 'the capability read-job in namespace "web" or any other'),
        (permissions.READ_JOB, "*", "the capability read-job in any namespace"),
        (permissions.READ_JOB, "", "the capability read-job in any namespace"),
        (permissions.WRITE_VARIABLE, "web", 'the capability write on any variable in namespace "web" or any other'),
        (permissions.READ_NODE_POOL, "web", "the capability read on any node pool"),
        (permissions.MOUNT_HOST_VOLUME_READ_WRITE, "", "the capability mount-readwrite on any host volume"),
    ],
)
def test_a_denial_for_every_object_names_the_namespace_of_the_request(
    permission: Permission, namespace: str, text: str
) -> None:
    denial = describe_denial(make_caller(), permission, namespace=namespace, is_anywhere=True)

    assert denial == f'token "ci" lacks {text}'


def test_a_request_without_a_token_needs_the_permission_only_in_its_namespace() -> None:
    text = describe_denial(make_caller(CallerKind.ANONYMOUS), permissions.READ_JOB, namespace="web", is_anywhere=True)

    assert text == 'the request had no token; it needs the capability read-job in namespace "web"'


def test_a_token_without_a_name_is_named_by_its_accessor_id() -> None:
    text = describe_denial(make_caller(name=""), permissions.READ_NODE)

    assert text == 'token a1 lacks node { policy = "read" }'


def get_detail(caller: Caller, namespace: str, query_namespace: str) -> str:
    with pytest.raises(Refusal) as caught:
        require_rights(caller, permissions.REGISTER_JOB, namespace=namespace, query_namespace=query_namespace)
    assert caught.value.text == "Permission denied"
    return caught.value.detail


@pytest.mark.parametrize(
    ("namespace", "query_namespace", "is_named"),
    [("secret", "default", False), ("secret", "secret", True), ("apps", "default", True)],
    ids=["hidden", "named by the request", "visible"],
)
def test_the_namespace_of_an_object_is_named_only_to_callers_that_know_it(
    namespace: str, query_namespace: str, is_named: bool
) -> None:
    detail = get_detail(make_caller(), namespace, query_namespace)

    assert ((f'in namespace "{namespace}"' in detail), ("in this namespace" in detail)) == (is_named, not is_named)


def test_a_long_name_is_cut() -> None:
    text = describe_denial(make_caller(), permissions.READ_JOB, namespace="n" * 1_000)

    assert len(text) < 100 + MAX_NAME_CHARS


def test_without_access_control_nothing_is_denied() -> None:
    require_rights(UNCHECKED_CALLER, permissions.MANAGEMENT_TOKEN)


@pytest.mark.parametrize("detail", ['token "ci" lacks x in namespace "é\r\nSet-Cookie: a"', "100 %", ""])
def test_a_detail_is_sent_as_one_header_and_read_back(detail: str) -> None:
    value = encode_detail(detail)

    assert (value.isascii(), value.isprintable() or not value, decode_detail(value)) == (True, True, detail)


def test_a_long_detail_is_cut() -> None:
    assert len(encode_detail("ü" * 5_000)) == MAX_DETAIL_BYTES
