"""Endpoints of quotas."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.quotas import Quota, QuotaUsage
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, define_read, define_write

QUOTA_PARAMETER: Final = "{quota_name}"
QUOTA_LIST: Final = ListFeatures(record=Quota, can_reverse=False, can_filter=False, has_pages=False)

ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "quota.list", "/v1/quotas", need=permissions.ANY_TOKEN, summary="List the quotas that the caller may read.",
        list_features=QUOTA_LIST, reply_type=list[Quota],
    ),
    define_read("quota.read", f"/v1/quota/{QUOTA_PARAMETER}", need=permissions.READ_QUOTA, summary="Read a quota.", reply_type=Quota),
    define_write("quota.store", "/v1/quota", need=permissions.WRITE_QUOTA, summary="Create or replace a quota.", body_type=Quota),
    define_write(
        "quota.update", f"/v1/quota/{QUOTA_PARAMETER}", need=permissions.WRITE_QUOTA,
        summary="Create or replace the quota with this name.", body_type=Quota,
    ),
    define_write(
        "quota.delete", f"/v1/quota/{QUOTA_PARAMETER}", method="DELETE", need=permissions.WRITE_QUOTA,
        summary="Delete a quota that no namespace uses.",
    ),
    define_read(
        "quota.usages", "/v1/quota-usages", need=permissions.ANY_TOKEN,
        summary="List the usage of the quotas that the caller may read.", list_features=QUOTA_LIST, reply_type=list[QuotaUsage],
    ),
    define_read(
        "quota.usage", f"/v1/quota/usage/{QUOTA_PARAMETER}", need=permissions.READ_QUOTA, summary="Read the usage of a quota.",
        reply_type=QuotaUsage,
    ),
)  # fmt: skip
