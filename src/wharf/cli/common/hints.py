"""What to do about refusals whose texts are those of Nomad's API, so that clients recognize them. Names no remedy twice."""

import re
from typing import Final

import click

_HINTS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"No path to node$"),
        "the node is down or out of contact: `wharf node status` shows it; try again when it is ready",
    ),
    (
        re.compile(r"No path to region$"),
        "no server knows a server of that region: `wharf operator api /v1/regions` lists the regions; leave out --region for "
        "the region of the server",
    ),
    (
        re.compile(r"can't promote terminal deployment$"),
        "the deployment has ended, so that no canaries are left: `wharf deployment list` shows the deployments that "
        "run, and `wharf job run` starts a new one",
    ),
    (re.compile(r"namespace not found$", re.IGNORECASE), "`wharf namespace list` lists all"),
    (re.compile(r"node pool(?: \S+)? not found$", re.IGNORECASE), "`wharf node pool list` lists all"),
    (
        re.compile(r'nonexistent node pool "[^"]*"$'),
        "`wharf node pool list` lists all, and `wharf node pool apply NAME` creates one",
    ),
    (re.compile(r'nonexistent namespace "[^"]*"$'), "`wharf namespace list` lists all"),
    (re.compile(r'quota "[^"]*" not found$'), "`wharf quota list` lists all"),
    (re.compile(r"service registration not found$"), "`wharf service info SERVICE` lists the instances with their ids"),
    (re.compile(r'file "[^"]*" is not a directory$'), "`wharf alloc fs cat` prints a file, and `fs stat` describes it"),
    (re.compile(r"unknown server \S+$"), "`wharf server members` lists all"),
    (
        re.compile(r"can't revert to current version$|at version \d+ not found$"),
        "`wharf job history JOB` lists the versions",
    ),
    (re.compile(r"ACL policy not found$"), "`wharf acl policy list` lists all"),
    (
        re.compile(r"ACL token not found$|(?:Cannot delete nonexistent tokens|cannot find token): .*"),
        "`wharf acl token list` lists the accessor ids",
    ),
    (re.compile(r"ACL auth.method not found$"), "`wharf acl auth-method list` lists all"),
    (
        re.compile(r"(?:ACL bootstrap already done|Invalid bootstrap reset index) \(.*reset index: (?P<index>\d+)\)$"),
        "to create a new first token, write the number {index} into the file acl-bootstrap-reset in the folder of the "
        "setting data_dir, on the server that you call, and repeat the command",
    ),
)
"""Texts of refusals, each with what the user can do."""
_NAMELESS: Final = re.compile(
    r"(?:ACL policy|ACL auth.method|service registration|namespace|quota|node pool|policy) not found",
    re.IGNORECASE,
)
"""Texts that do not contain the name that was not found. The name of a token is never added: it may be a secret."""


def add_hint(text: str) -> str:
    """Return the text of a refusal with the name that the user entered, if it lacks it, and with what to do."""
    hint = next(
        (hint.format(**found.groupdict()) for pattern, hint in _HINTS if (found := pattern.search(text)) is not None),
        "",
    )
    context = click.get_current_context(silent=True)
    params = context.params if context is not None else {}
    name = params.get("registration_id") or params.get("name")
    if _NAMELESS.fullmatch(text) and isinstance(name, str) and name:
        text = f"{text}: {name}"
    return f"{text}; {hint}" if hint else text
