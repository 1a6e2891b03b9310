"""The records of the limiter that sinks and followers get: decisions, and changes by operators.

Their JSON schema is documented. A new field has a default; any other change needs a new version.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from wharf.limits.core.decision import EvaluatedLimit
from wharf.sinks.records import (
    LossRecord,
    RecordSeverity,
    StreamRecord,
    format_record_time,
)

DECISION_TYPE: Final = "limits.decision"
AUDIT_TYPE: Final = "limits.audit"
NS_PER_MS: Final = 1_000_000
UNKNOWN_OPERATOR: Final = "unknown"


class LimitData(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that was evaluated for a request."""

    rule: Annotated[str, Meta(description="The name of the rule.")]
    key: Annotated[str, Meta(description="The counter, such as user:ada.")]
    before: Annotated[int, Meta(description="The count before the request.")]
    after: Annotated[int, Meta(description="The count after the request.")]
    ceiling: int
    cost: Annotated[int, Meta(description="What the request costs if it is admitted.")]
    is_exceeded: bool
    is_enforced: Annotated[bool, Meta(description="False in shadow mode: the limit is counted but refuses nothing.")]
    free_at: Annotated[str | None, Meta(description="When the request would fit again, if the limit was exceeded.")]
    source: Annotated[str, Meta(description="The file and line of the rule.")]


class DecisionData(msgspec.Struct, frozen=True, kw_only=True):
    """The decision about one request: all refusals, also those that shadow mode prevented, and one of `one_in` admissions."""

    request_id: str
    verdict: Annotated[
        str,
        Meta(
            description="admitted, banned, primary, secondary, never (costs more than the ceiling), too_many_objects or "
            "too_complex."
        ),
    ]
    method: str
    path: Annotated[str, Meta(description="Without the query; at most 1,024 characters.")]
    endpoint: Annotated[str, Meta(description="The name of the endpoint, such as GET /repos/*.")]
    resource: Annotated[str | None, Meta(description="The organization's resource of the path, such as acme/site.")]
    caller: Annotated[str, Meta(description="The owner of the counters, such as user:ada.")]
    credential: Annotated[str, Meta(description="The kind of credential, such as personal_token.")]
    app: Annotated[str | None, Meta(description="The app of the credential, such as app:7.")]
    address: Annotated[str, Meta(description="The caller's address, or its network with cut_addresses.")]
    bucket: Annotated[str, Meta(description="The primary bucket, such as core.")]
    retry_after_s: int | None
    refused_by: Annotated[str | None, Meta(description="The rule that the refusal names.")]
    banned_until: Annotated[str | None, Meta(description="The end of the caller's ban.")]
    problem: Annotated[str | None, Meta(description="What is wrong with the body, for verdicts about it.")]
    limits: Annotated[list[LimitData], Meta(description="Every limit that was evaluated, the primary one first.")]


class DecisionRecord(StreamRecord, frozen=True, kw_only=True, tag=DECISION_TYPE):
    """A request was admitted or refused by the rate limiter. The id is the id of the request."""

    data: DecisionData


class OperatorChangeData(msgspec.Struct, frozen=True, kw_only=True):
    """A change of limits."""

    action: Annotated[str, Meta(description="What was done, such as grant, grant revoked, ban, unban or reset.")]
    operator: Annotated[str, Meta(description="Who did it; `time` for what ended by itself.")]
    reason: Annotated[str, Meta(description="As the operator gave it.")] = ""
    details: Annotated[
        dict[str, Any], Meta(description="What it applies to, such as owner, resource, amount and until_ms.")
    ] = {}


class OperatorChangeRecord(StreamRecord, frozen=True, kw_only=True, tag=AUDIT_TYPE):
    """An operator changed limits of the rate limiter, or such a change ended."""

    data: OperatorChangeData


RECORD_TYPES: Final = (DecisionRecord, OperatorChangeRecord, LossRecord)
"""All types of records of a limiter."""


def build_decision_record(
    entry: Mapping[str, Any], limits: list[EvaluatedLimit], *, resource: str, source: str
) -> DecisionRecord:
    """Return the record of a decision. `entry` is the decision as the decision log renders it."""
    refused = entry["verdict"] != "admitted"
    banned_until_ms = entry["banned_until_ms"]
    return DecisionRecord(
        id=entry["request_id"],
        time=format_record_time(entry["at_ms"] * NS_PER_MS),
        source=source,
        severity=RecordSeverity.WARNING if refused else RecordSeverity.INFO,
        data=DecisionData(
            request_id=entry["request_id"],
            verdict=entry["verdict"],
            method=entry["method"],
            path=entry["path"],
            endpoint=entry["endpoint"],
            resource=resource or None,
            caller=entry["caller"],
            credential=entry["credential"],
            app=entry["app"],
            address=entry["address"],
            bucket=entry["resource"],
            retry_after_s=entry["retry_after_s"],
            refused_by=entry["told_by"],
            banned_until=format_record_time(banned_until_ms * NS_PER_MS) if banned_until_ms else None,
            problem=entry["problem"],
            limits=[
                LimitData(
                    rule=limit.rule,
                    key=limit.key,
                    before=limit.before,
                    after=limit.after,
                    ceiling=limit.ceiling,
                    cost=limit.cost,
                    is_exceeded=limit.is_hit,
                    is_enforced=limit.is_enforced,
                    free_at=format_record_time(limit.free_at_ms * NS_PER_MS) if limit.free_at_ms is not None else None,
                    source=f"{limit.file}:{limit.line}",
                )
                for limit in limits
            ],
        ),
    )


def build_change_record(entry: Mapping[str, Any], *, source: str, line_number: int = 0) -> OperatorChangeRecord:
    """Return the record of an entry of the audit file. Entries of older versions have no id, so their line is the id."""
    details = {name: value for name, value in entry.items() if name not in ("at_ms", "act", "by", "reason", "id")}
    return OperatorChangeRecord(
        id=str(entry.get("id") or f"{entry['at_ms']}-{line_number}"),
        time=format_record_time(int(entry["at_ms"]) * NS_PER_MS),
        source=source,
        severity=RecordSeverity.NOTICE,
        data=OperatorChangeData(
            action=str(entry["act"]),
            operator=str(entry.get("by", UNKNOWN_OPERATOR)),
            reason=str(entry.get("reason", "")),
            details=details,
        ),
    )
