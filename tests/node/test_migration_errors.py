"""Which failures of a migration download are retried."""

import pytest

from wharf.contract.client import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.node.migration.download import is_transient


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        (Unreachable("no reply", is_sent=True), True),
        (Refusal(RefusalCode.UNAVAILABLE, "no"), True),
        (Refusal(RefusalCode.NOT_FOUND, "no", RefusalReason.NO_NODE_PATH), True),
        (Refusal(RefusalCode.NOT_FOUND, "No path to node"), True),  # From a server before 0.2.
        (Refusal(RefusalCode.NOT_FOUND, "unknown allocation"), False),
    ],
)
def test_a_download_is_retried_if_the_node_may_reconnect(error: Refusal | Unreachable, is_retried: bool) -> None:
    assert is_transient(error) is is_retried
