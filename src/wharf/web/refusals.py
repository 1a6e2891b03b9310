"""Why the API refused a request, in words for people. The API keeps the texts that clients of Nomad recognize."""

from typing import Final

from wharf.contract.client.errors import Forbidden, RequestRefused
from wharf.contract.model.refusal import RefusalReason

NO_NODE_TEXT: Final = "the node cannot be reached, because it is down or out of contact"


def explain_refusal(refusal: RequestRefused) -> str:
    """Return why a request was refused, with the right that is missing, if the API names it."""
    if refusal.reason is RefusalReason.NO_NODE_PATH:
        return NO_NODE_TEXT
    if refusal.detail and isinstance(refusal, Forbidden):
        return f"{refusal.text}: {refusal.detail.removesuffix('.')}"
    return refusal.text
