"""Limits on the lists, maps, texts and names of request bodies. `decoding` checks them while it decodes a body.

Records that Wharf wrote itself are not checked, so stored records above a limit stay readable.
`python -m wharf.contract.model.body_limits > docs/body-limits.md` writes the page; a test fails if it is out of date.
"""

import re
import sys
from collections.abc import Mapping
from typing import Final

import msgspec

MAX_REPORTED_PROBLEMS: Final = 20
"""Problems reported for one body. Decoding stops there; limits the CPU time and the size of an error reply."""
MAX_ITEMS: Final = 5_000
"""Items of one list and entries of one map, unless the field has a limit of its own; limits the CPU time of a body."""
MAX_TOTAL_ITEMS: Final = 100_000
"""List items and map entries of a whole body; limits the CPU time of validating many lists below their own limits."""
OBJECT_ITEMS: Final = 5
"""How many items an object counts as: to decode, complete and validate a task takes several times as long as a text."""
MAX_JSON_VALUES: Final = 2_000_000
"""Values, lists and objects of a whole body, counted before it is decoded. A body of 10 MB could hold 3,000,000 empty lists,
which take 290 MB of memory.
"""
MAX_TEXT_CHARS: Final = 131_072
"""Characters of one text, unless the field has a limit of its own. Linux passes no longer argument to a program."""
MAX_KEY_CHARS: Final = 1_024
"""Characters of a key of a map; limits the size of every message and index that holds the key."""
MAX_OBJECT_FIELDS: Final = 1_000
"""Fields of one object, known or unknown; limits the search for similar names."""
MAX_NAME_BYTES: Final = 256
"""UTF-8 bytes of an id or name. Paths, page tokens, log lines and table keys hold ids."""
MAX_TASK_NAME_BYTES: Final = 240
"""UTF-8 bytes of the name of a task. The names of its log files contain it, and file systems allow 255 bytes: the rest is
for `.stdout.` and seven digits."""
MAX_ECHOED_CHARS: Final = 200
"""Characters of input that an error text repeats; limits the size of replies and log lines."""


MAX_INLINE_BODY_BYTES: Final = 64 * 1024
"""Larger bodies are decoded in a worker process; protects the event loop of an api process."""
MAX_INLINE_OBJECTS: Final = 256
"""Bodies with more objects and lists are large too: an empty group is two bytes, and takes 30 µs to complete and
validate.
"""
MAX_INLINE_ITEMS: Final = 4_096
"""Bodies with more items, that is commas, are large too."""
MAX_INLINE_OBJECTS_BY_BODY: Final[Mapping[str, int]] = {"NodeReportRequest": 2_048}
"""Bodies whose objects are only decoded: 1,800 objects of a report take 2.3 ms."""
MAX_INLINE_BYTES_BY_BODY: Final[Mapping[str, int]] = {"PolicyRequest": 4 * 1024}
"""Bodies that are expensive for their size: the rules of a policy are parsed."""
MAX_INLINE_CONDITION_BYTES: Final = 1024
"""Larger bodies with a condition of a step are large: parsing 1,000 characters of it takes 7 ms."""
_CONDITION_NAME: Final = re.compile(rb'"(?:i|\\u00[46]9)(?:f|\\u00[46]6)"', re.IGNORECASE)
"""The name of the field `If`, in any case and with any of its letters escaped."""
MAX_REGISTRATION_BYTES: Final = 1024 * 1024
"""The registration of a node. Each server keeps it in memory, and the leader compares it with the stored one: 3 ms."""
PROGRAM_BODIES: Final = frozenset(("JobParseRequest",))
"""Bodies that are programs: even a short job file can take a second."""
_ALWAYS_INLINE_BYTES: Final = 512
"""Smaller bodies cannot hold enough objects to be large."""


def is_large_body(body: bytes, body_type: str) -> bool:
    """Return whether a body is decoded and validated in a worker process. `body_type`: the name of its type."""
    if body_type in PROGRAM_BODIES:
        return True
    if len(body) <= _ALWAYS_INLINE_BYTES:
        return False
    if (
        len(body) > MAX_INLINE_BYTES_BY_BODY.get(body_type, MAX_INLINE_BODY_BYTES)
        or body.count(b",") > MAX_INLINE_ITEMS
    ):
        return True
    if len(body) > MAX_INLINE_CONDITION_BYTES and _CONDITION_NAME.search(body) is not None:
        return True
    # A text can hold JSON, with braces as escapes.
    objects = body.count(b"{") + body.count(b"[") + body.count(b"\\u")
    return objects > MAX_INLINE_OBJECTS_BY_BODY.get(body_type, MAX_INLINE_OBJECTS)


class FieldLimits(msgspec.Struct, frozen=True):
    """The limits of one field of a body, and the reason why they differ from the defaults."""

    reason: str
    max_items: int = MAX_ITEMS
    max_text_chars: int = MAX_TEXT_CHARS


_SOURCE_CHARS: Final = 32 * 1024 * 1024
_DOCUMENT_CHARS: Final = 4 * 1024 * 1024
_COMPARED_CHARS: Final = 16_384
_COMPARED_TEXT: Final = "compared with a value of each node"

LIMITS_BY_FIELD: Final[Mapping[str, FieldLimits]] = {
    "Job.TaskGroups": FieldLimits("each group is validated and scheduled separately", max_items=1_000),
    "TaskGroup.Tasks": FieldLimits("each task is validated separately", max_items=1_000),
    "GroupArray.Items": FieldLimits("each item becomes a variable of a task", max_items=50_000, max_text_chars=4_096),
    "Constraint.LTarget": FieldLimits(_COMPARED_TEXT, max_text_chars=_COMPARED_CHARS),
    "Constraint.RTarget": FieldLimits(_COMPARED_TEXT, max_text_chars=_COMPARED_CHARS),
    "Affinity.LTarget": FieldLimits(_COMPARED_TEXT, max_text_chars=_COMPARED_CHARS),
    "Affinity.RTarget": FieldLimits(_COMPARED_TEXT, max_text_chars=_COMPARED_CHARS),
    "JobSource.Source": FieldLimits("a source above `job_max_source_size` is not stored", max_text_chars=_SOURCE_CHARS),
    "JobSource.Variables": FieldLimits("part of the source of the job", max_text_chars=_SOURCE_CHARS),
    "JobSource.SensitiveFields": FieldLimits("stored with each version", max_items=1_000, max_text_chars=1_024),
    "JobPlanRequest.SensitiveFields": FieldLimits("as in `JobSource`", max_items=1_000, max_text_chars=1_024),
    "JobParseRequest.JobHCL": FieldLimits("a whole job file", max_text_chars=_DOCUMENT_CHARS),
    "JobParseRequest.Variables": FieldLimits("a whole file of variables", max_text_chars=_DOCUMENT_CHARS),
    "Template.EmbeddedTmpl": FieldLimits("a whole template", max_text_chars=_DOCUMENT_CHARS),
    "PolicyRequest.Rules": FieldLimits("a whole policy document", max_text_chars=_DOCUMENT_CHARS),
    "Job.Payload": FieldLimits("the payload of a dispatched job, as base64", max_text_chars=_DOCUMENT_CHARS),
    "JobDispatchRequest.Payload": FieldLimits("checked against 16 KiB after decoding", max_text_chars=_DOCUMENT_CHARS),
    "VariableRequest.Items": FieldLimits("checked against 64 KiB in total after decoding", max_text_chars=_DOCUMENT_CHARS),
    "AllocationUpdate.LogTails": FieldLimits("the last log lines of all tasks, as base64", max_text_chars=_DOCUMENT_CHARS),
    "JobStatusesRequest.Jobs": FieldLimits("checked against 10,000 jobs after decoding", max_items=20_000),
    "DeploymentHealthRequest.HealthyAllocationIDs": FieldLimits("checked against 10,000 after decoding", max_items=20_000),
    "DeploymentHealthRequest.UnhealthyAllocationIDs": FieldLimits("checked against 10,000 after decoding", max_items=20_000),
    "AuthMethodConfigView.ClaimMappings": FieldLimits("each claim is searched when a user logs in", max_items=1_000),
    "AuthMethodConfigView.ListClaimMappings": FieldLimits("each claim is searched when a user logs in", max_items=1_000),
    "AuthMethodConfigView.AllowedRedirectURIs": FieldLimits("each is parsed when a user logs in", max_items=1_000),
    "AssignmentsRequest.IDs": FieldLimits("a node requests 1,000 at a time; each may have a job of 10 MB", max_items=1_000),
    "EvaluationDeleteRequest.EvalIDs": FieldLimits("checked against 7,281 evaluations after decoding", max_items=20_000),
}  # fmt: skip
"""Fields with limits other than the defaults, as `Record.Field` in wire names."""

MAX_TOTAL_ITEMS_BY_BODY: Final[Mapping[str, int]] = {
    "JobStatusesRequest": 300_000,
    "NodeReportRequest": 5_000_000,
}
"""Bodies that hold more items by design: a status view names 10,000 jobs, and a node reports up to 1,000 allocations with
their task events at once, in up to 2 MB.
"""

NAME_FIELDS: Final = frozenset(("ID", "Name"))
"""Wire names of the fields that hold an id or a name. `FURTHER_NAME_FIELDS` and `UNCHECKED_NAME_FIELDS` have exceptions."""
FURTHER_NAME_FIELDS: Final = frozenset(
    (
        "HostVolume.NodePool",
        "HostVolume.PluginID",
        "IntroductionRequest.NodeName",
        "IntroductionRequest.NodePool",
        "Job.Namespace",
        "Job.NodePool",
        "Job.Region",
        "MultiregionRegion.NodePool",
        "Node.Datacenter",
        "Node.NodeClass",
        "Node.NodePool",
        "Port.HostNetwork",
        "Port.Label",
        "Service.PortLabel",
        "ServiceCheck.PortLabel",
        "Task.Driver",
        "VariableRequest.Path",
        "VolumeRequest.Source",
    )
)
"""Fields with other wire names that hold an id or a name, as `Record.Field`."""
NAME_LIST_FIELDS: Final = frozenset(("Job.Datacenters",))
"""Lists whose elements are names, as `Record.Field`."""
NAME_KEY_FIELDS: Final = frozenset(
    (
        "Node.CSIControllerPlugins",
        "Node.CSINodePlugins",
        "Node.Drivers",
        "Node.HostNetworks",
        "Node.HostVolumes",
        "Service.TaggedAddresses",
        "TaskGroup.Volumes",
    )
)
"""Maps whose keys are names, as `Record.Field`. The keys of other maps are free, such as those of metadata and environments."""
UNCHECKED_NAME_FIELDS: Final = frozenset(("JobName.ID", "ServiceRegistration.ID", "TokenRequest.Name"))
"""Fields that are not checked while decoding: references to records whose ids servers made from other ids, and the name
of a token, which is checked with the other fields of the token.
"""

_FORBIDDEN_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters, line breaks, and characters that change the direction of text."""


def is_name_field(field: str) -> bool:
    """Return whether a field, as `Record.Field`, holds an id or a name."""
    if field in UNCHECKED_NAME_FIELDS:
        return False
    return field in FURTHER_NAME_FIELDS or field.partition(".")[2] in NAME_FIELDS


def find_name_problem(name: str) -> str:
    """Return what is wrong with an id or a name, or "" if it is valid. An empty name is valid here."""
    return find_long_name_problem(name, max_bytes=MAX_NAME_BYTES)


def find_long_name_problem(name: str, *, max_bytes: int) -> str:
    """Return what is wrong with an id that may have more bytes than other names, or "" if it is valid."""
    if len(name) <= max_bytes and name.isascii() and name.isprintable() and "." not in name:
        return ""  # Nearly all names.
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        return f"is {size} bytes long; ids and names have at most {max_bytes} bytes"
    found = _FORBIDDEN_CHARACTER.search(name)
    if found is not None:
        return (
            f"contains the character U+{ord(found[0]):04X} at position {found.start() + 1}; "
            "ids and names have no control characters and none that change the direction of text"
        )
    if any(segment in (".", "..") for segment in name.split("/")):
        return 'contains the path segment "." or ".."; no request could name it in its path'
    return ""


def replace_forbidden_characters(name: str) -> str:
    """Return a name without characters that no name may have, each replaced by `_`."""
    return _FORBIDDEN_CHARACTER.sub("_", name)


def cut_echo(text: str) -> str:
    """Return input for an error text: cut after `MAX_ECHOED_CHARS` characters, with `...` at the cut."""
    return text if len(text) <= MAX_ECHOED_CHARS else text[:MAX_ECHOED_CHARS] + "..."


_PAGE_HEADER: Final = """\
# Limits of request bodies

This page lists how large the parts of your requests may be. It is written by `python -m wharf.contract.model.body_limits`.

A server checks these limits while it decodes a body. A body above a limit gets the status 400 and a text that names the field
and the limit, and changes nothing. Fields that Wharf does not know or does not read have the limits of values without a type,
such as the configuration of a driver. The size of a whole body is limited too, and by default to 10 MB (`api.max_body_size`).
"""


def render_page() -> str:
    """Return the whole page of limits in Markdown."""
    defaults = (
        ("items of one list, entries of one map", MAX_ITEMS),
        (f"list items and map entries of a whole body; an object counts as {OBJECT_ITEMS}", MAX_TOTAL_ITEMS),
        ("values, lists and objects of a whole body", MAX_JSON_VALUES),
        ("characters of one text", MAX_TEXT_CHARS),
        ("characters of a key of a map", MAX_KEY_CHARS),
        ("fields of one object", MAX_OBJECT_FIELDS),
        ("UTF-8 bytes of an id or name", MAX_NAME_BYTES),
        ("UTF-8 bytes of the name of a task in a new or changed job", MAX_TASK_NAME_BYTES),
        ("problems reported for one body", MAX_REPORTED_PROBLEMS),
        ("characters of input that an error text repeats", MAX_ECHOED_CHARS),
    )
    lines = [_PAGE_HEADER, "| Limit | Value |", "|---|---|"]
    lines += [f"| {name} | {value:,} |" for name, value in defaults]
    lines += ["", "These fields have limits of their own:", "", "| Field | Items | Characters of a text | Reason |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| `{field}` | {limits.max_items:,} | {limits.max_text_chars:,} | {limits.reason} |"
        for field, limits in LIMITS_BY_FIELD.items()
    ]
    lines += [""]
    lines += [f"The body `{body}` may hold {value:,} items." for body, value in MAX_TOTAL_ITEMS_BY_BODY.items()]
    lines += [
        "",
        "## Large bodies",
        "",
        f"Bodies over {MAX_INLINE_BODY_BYTES // 1024} KiB are decoded, validated and executed in a copy of the api process, so that they delay no other",
        "request ([0088](adr/0088-execute-large-requests-in-copies-of-the-api-process.md)). The same holds for bodies with more than",
        f"{MAX_INLINE_OBJECTS} objects and lists, or more than {MAX_INLINE_ITEMS:,} commas. These bodies have limits of their own:",
        "",
        "| Body | Bytes | Objects and lists |",
        "|---|---|---|",
        *(
            f"| `{body}` | {MAX_INLINE_BYTES_BY_BODY.get(body, MAX_INLINE_BODY_BYTES):,} "
            f"| {MAX_INLINE_OBJECTS_BY_BODY.get(body, MAX_INLINE_OBJECTS):,} |"
            for body in sorted({*MAX_INLINE_BYTES_BY_BODY, *MAX_INLINE_OBJECTS_BY_BODY})
        ),
        "",
        "Endpoints that wait for a node or an identity provider, or that need no token, accept only bodies up to",
        f"{MAX_INLINE_BODY_BYTES // 1024} KiB: logins, tokens, host volumes, and commands to allocations and node agents.",
        "",
        f"The registration of a node has at most {MAX_REGISTRATION_BYTES // 1024 // 1024} MiB: every server keeps the attributes and metadata of all nodes in memory.",
        "",
        "[CPU time of requests](request-limits.md) lists how much CPU time a request may use.",
        "",
        "## Ids and names",
        "",
        "An id or name contains no control character, no line break, no character that changes the direction of text, and no path",
        "segment `.` or `..`. This holds for the fields `ID` and `Name` of every object, and for these fields:",
        "",
        *(f"- `{field}`" for field in sorted(FURTHER_NAME_FIELDS)),
        "",
        "It also holds for the keys of these maps, but not for the keys of other maps, such as metadata:",
        "",
        *(f"- `{field}`" for field in sorted(NAME_KEY_FIELDS)),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(render_page())
