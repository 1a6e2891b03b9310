"""`wharf.client` is the public import of the client."""

import pytest

import wharf.client
import wharf.client.errors
import wharf.contract.client
import wharf.contract.client.errors
from wharf.contract.client.calls import Response
from wharf.contract.client.methods import FORMER_METHOD_NAMES, METHODS_BY_ENDPOINT


def test_the_public_package_offers_every_name_of_the_client() -> None:
    for name in wharf.contract.client.__all__:
        assert getattr(wharf.client, name) is getattr(wharf.contract.client, name), name


def test_former_public_names_still_work() -> None:
    assert wharf.client.Retries(attempts=2) == wharf.contract.client.RetryPolicy(max_attempts=2)
    assert wharf.client.ONCE is wharf.contract.client.NO_RETRIES
    assert wharf.client.errors.Refused is wharf.contract.client.errors.RequestRefused


def test_every_former_name_leads_to_a_name_that_exists() -> None:
    for module in (wharf.client, wharf.client.errors):
        for name in module._FORMER_NAMES:
            assert getattr(module, name) is not None, name


def test_a_star_import_provides_the_names_of_the_client_and_their_former_names() -> None:
    namespace: dict[str, object] = {}
    exec("from wharf.client import *\nfrom wharf.client.errors import *", namespace)

    assert namespace["connect"] is wharf.contract.client.connect
    assert namespace["Exchange"] is wharf.contract.client.Transport
    assert namespace["NotFound"] is wharf.contract.client.errors.NotFound
    assert namespace["refused"] is wharf.contract.client.errors.build_error


def test_former_names_of_methods_and_arguments_still_work() -> None:
    settings = wharf.client.ClientSettings(addresses=("http://127.0.0.1:1",))
    with wharf.client.connect(settings, retries=wharf.client.Retries(attempts=1)) as client:
        for group, former in ((client.jobs, "stable"), (client.agent, "self"), (client.acl.tokens, "own")):
            assert callable(getattr(group, former)), former
        with pytest.raises(AttributeError, match="no attribute 'stabel'"):
            getattr(client.jobs, "stabel")  # noqa: B009 - a type checker would reject the name
        with pytest.raises(wharf.client.Unreachable):
            getattr(client.jobs, "statuses")()  # noqa: B009 - likewise


def test_each_former_name_of_a_method_leads_to_a_method_that_exists() -> None:
    methods = {name.rpartition(".")[2] for entries in METHODS_BY_ENDPOINT.values() for name, _ in entries}

    assert set(FORMER_METHOD_NAMES.values()) <= methods


def test_a_response_has_its_former_names() -> None:
    assert Response(value=1, index=2, is_leader_known=False).known_leader is False
