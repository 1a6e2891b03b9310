"""Endpoints of quotas."""

from typing import Final

from wharf.model import need
from wharf.model.quota import Quota, QuotaUsage
from wharf.wire.endpoints.endpoint import Endpoint, Lists, reads, writes

NAME: Final = "{quota_name}"
LISTED: Final = Lists(record=Quota, reverses=False, filters=False, pages=False)

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "quota.list", "/v1/quotas", need=need.ANY_TOKEN, summary="List the quotas that the caller may read.",
        lists=LISTED, returns=list[Quota],
    ),
    reads("quota.read", f"/v1/quota/{NAME}", need=need.READ_QUOTA, summary="Read a quota.", returns=Quota),
    writes("quota.store", "/v1/quota", need=need.WRITE_QUOTA, summary="Create a quota or change it.", body=Quota),
    writes(
        "quota.update", f"/v1/quota/{NAME}", need=need.WRITE_QUOTA,
        summary="Create a quota or change it, under its name.", body=Quota,
    ),
    writes(
        "quota.delete", f"/v1/quota/{NAME}", method="DELETE", need=need.WRITE_QUOTA,
        summary="Delete a quota that no namespace names.",
    ),
    reads(
        "quota.usages", "/v1/quota-usages", need=need.ANY_TOKEN,
        summary="List what is used of the quotas that the caller may read.", lists=LISTED, returns=list[QuotaUsage],
    ),
    reads(
        "quota.usage", f"/v1/quota/usage/{NAME}", need=need.READ_QUOTA, summary="Read what is used of a quota.",
        returns=QuotaUsage,
    ),
)  # fmt: skip
