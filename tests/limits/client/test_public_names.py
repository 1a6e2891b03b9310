"""The public names of the client for limits."""

import wharf.limits.client
from wharf.limits.client import ClientPolicy, FileStateStore


def test_former_public_names_still_work() -> None:
    assert wharf.limits.client.Manner is ClientPolicy
    assert wharf.limits.client.FileLedger is FileStateStore


def test_every_former_name_leads_to_a_name_that_exists() -> None:
    for name in wharf.limits.client._FORMER_NAMES:
        assert getattr(wharf.limits.client, name) is not None, name
