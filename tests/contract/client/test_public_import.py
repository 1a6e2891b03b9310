"""`wharf.client` is the public import of the client."""

import wharf.client
import wharf.client.errors
import wharf.contract.client
import wharf.contract.client.errors


def test_the_public_package_offers_every_name_of_the_client() -> None:
    for name in wharf.contract.client.__all__:
        assert getattr(wharf.client, name) is getattr(wharf.contract.client, name), name


def test_former_public_names_still_work() -> None:
    assert wharf.client.Retries is wharf.contract.client.RetryPolicy
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
    assert namespace["Retries"] is wharf.contract.client.RetryPolicy
    assert namespace["NotFound"] is wharf.contract.client.errors.NotFound
    assert namespace["refused"] is wharf.contract.client.errors.build_error
