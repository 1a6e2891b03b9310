"""Every table and key of a rules file and a directory file: its kind, what it is for, and its default.

The readers and the page in the documentation both come from these declarations.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.limits.core.rule import Algorithm, ConnectionClass, CountedUnit, Interface, PerItem, StoreOutagePolicy
from wharf.limits.rules.values import (
    ACCOUNT,
    CEILINGS,
    DURATION,
    FLAG,
    NAME,
    SHA256,
    TEXT,
    TEXTS,
    TIMESTAMP,
    ValueKind,
    make_choice_kind,
    make_choices_kind,
    make_integer_kind,
)


class KeySchema(msgspec.Struct, frozen=True):
    name: str
    kind: ValueKind
    description: str
    default: str
    """As the page says it. `none` is for what need not be there, `needed` for what must."""


class TableSchema(msgspec.Struct, frozen=True):
    name: str
    description: str
    keys: tuple[KeySchema, ...]
    is_list: bool = False

    def find_key(self, name: str) -> KeySchema | None:
        return next((key for key in self.keys if key.name == name), None)


REQUIRED: Final = "needed"
NO_DEFAULT: Final = "none"

ROOT: Final = TableSchema(
    "",
    "Keys outside of any table.",
    (
        KeySchema(
            "profile",
            TEXT,
            "Built-in rules to start from: `code-host`, `cluster` (the limits of the cluster's own API), or `none`.",
            "`code-host`",
        ),
        KeySchema(
            "disclose_secondary",
            FLAG,
            "Whether secondary limits are told in `RateLimit` and at `/rate_limit`, not only in their refusals.",
            "`false`",
        ),
        KeySchema("documentation", TEXT, "The page that refusals refer to.", "`/docs/rate-limits`"),
        KeySchema(
            "keys_most",
            make_integer_kind(1, 100_000_000),
            "How many addresses without a credential are counted one by one. Further ones share the bucket of their "
            "/24 or /48 network.",
            "`1000000`",
        ),
    ),
)

RULE: Final = TableSchema(
    "rule",
    "A limit. With `resource` it is a primary limit, of which each request meets one: the first in the file whose "
    "`match` and `ceiling` fit, those of the profile last. Without, it is a secondary limit, and each request meets "
    "all that fit. A rule with the name of a built-in one changes only the keys that it gives.",
    (
        KeySchema("name", NAME, "The name. Counters are kept under it, so a new name is a new counter.", REQUIRED),
        KeySchema("was", NAME, "The name before it was renamed: its counters move over.", NO_DEFAULT),
        KeySchema(
            "match",
            TEXTS,
            "Patterns of method and path, such as `GET /search/*` or `POST,PATCH /repos/{owner}/{repo}/issues`. A "
            "segment is text, `{name}`, or a `{name}` with text after it; a last `*` stands for one or more segments. "
            "`*` in place of the method is every method, and `GET` is `HEAD` too.",
            "every request",
        ),
        KeySchema(
            "interface",
            make_choices_kind(Interface),
            "Which interfaces it is about; endpoints say which they speak.",
            "all",
        ),
        KeySchema(
            "resource", NAME, "The primary bucket, as `x-ratelimit-resource` tells it.", "none: a secondary limit"
        ),
        KeySchema("counts", make_choice_kind(CountedUnit), "What is counted.", '`"requests"`'),
        KeySchema(
            "algorithm",
            make_choice_kind(Algorithm),
            "How it is counted: `window` opens with the first request and has a fixed end; `slices` slides, and never "
            "lets more than the ceiling through in any window; `leases` counts what runs at once; `meter` is charged "
            "afterwards and may go into debt.",
            "by what is counted",
        ),
        KeySchema(
            "scope",
            TEXTS,
            "Whose use is counted: `caller` (what the credential counts against), `address`, `user`, `app`, "
            "`installation`, `repository` or `token`, or a pair of these. Where a credential has no such thing, "
            "the caller stands in.",
            '`"caller"`',
        ),
        KeySchema("per_endpoint", FLAG, "Whether each endpoint has a counter of its own.", "`false`"),
        KeySchema("window", DURATION, "The length of the window.", '`"1h"`'),
        KeySchema("slices", make_integer_kind(1, 60), "In how many parts a sliding window is counted.", "`12`"),
        KeySchema(
            "ceiling",
            CEILINGS,
            "What may be used in a window. Callers that it does not name do not meet the rule; the enterprise kinds "
            "take the ordinary one where they are not named. Over a built-in rule, a table changes those that it names, and a "
            "number all. CPU time is in milliseconds.",
            REQUIRED,
        ),
        KeySchema(
            "connection",
            make_choice_kind(ConnectionClass),
            "For `leases`, the class of requests that hold a slot.",
            '`"plain"`',
        ),
        KeySchema(
            "keys_most",
            make_integer_kind(0, 1_000_000),
            "How many counters one owner may have, where a rule counts by endpoint or by a pair. Further ones share "
            "one. 0 is without bound.",
            "`256`",
        ),
        KeySchema(
            "objects_most",
            make_integer_kind(1, 100_000),
            "Objects in one large-file batch; more are refused with 413.",
            NO_DEFAULT,
        ),
        KeySchema("hidden", FLAG, "A secondary limit that callers are never told of by name.", "`false`"),
        KeySchema("shadow", FLAG, "Count and report, and refuse nobody.", "`false`"),
        KeySchema(
            "enforce",
            make_integer_kind(0, 100),
            "The share of owners that it is enforced for, in per cent. For the others it is in shadow.",
            "`100`",
        ),
        KeySchema(
            "on_store_loss",
            make_choice_kind(StoreOutagePolicy),
            "What is answered while the counters cannot be reached: `open` admits, `closed` refuses, `local` counts "
            "in the process with a bound.",
            '`"local"`',
        ),
        KeySchema(
            "status",
            make_integer_kind(200, 599),
            "The status of its refusals.",
            "`403`; `429` for large files; `200` for the primary limit of GraphQL",
        ),
    ),
    is_list=True,
)

SCALE: Final = TableSchema(
    "rule.scale",
    "How the ceiling of an installation grows. Enterprise installations do not scale.",
    (
        KeySchema("per_repository", make_integer_kind(0, 1_000_000), "For each repository.", "`0`"),
        KeySchema("per_user", make_integer_kind(0, 1_000_000), "For each user of the organization.", "`0`"),
        KeySchema("above", make_integer_kind(0, 1_000_000), "How many there must be more than.", "`20`"),
        KeySchema("most", make_integer_kind(1, 1_000_000_000), "It never grows above this.", "no bound"),
        KeySchema(
            "per_item",
            make_choice_kind(PerItem),
            "Whether, once there are more than `above`, all of them count or those beyond.",
            '`"all"`',
        ),
    ),
)

ENDPOINT: Final = TableSchema(
    "endpoint",
    "What requests to an endpoint cost and are. The most specific pattern that matches decides.",
    (
        KeySchema("match", TEXTS, "Patterns, as for a rule. One without `*` names the endpoint.", REQUIRED),
        KeySchema("points", make_integer_kind(0, 1_000_000), "Points of a request.", "by method"),
        KeySchema("content", FLAG, "Whether its requests make content.", "`false`"),
        KeySchema("interface", make_choice_kind(Interface), "What it speaks.", '`"rest"`'),
        KeySchema(
            "free",
            FLAG,
            "Counts against no primary limit and never leads to a ban: for the endpoint that shows the limits.",
            "`false`",
        ),
        KeySchema("hidden", FLAG, "Its cost is kept from callers: limits fed by it show no remaining.", "`false`"),
    ),
    is_list=True,
)

POINTS: Final = TableSchema(
    "points",
    "Points of a request by method.",
    (
        KeySchema("read", make_integer_kind(0, 1_000_000), "GET, HEAD and OPTIONS.", "`1`"),
        KeySchema("write", make_integer_kind(0, 1_000_000), "All others, unknown methods too.", "`5`"),
    ),
)

GRAPHQL: Final = TableSchema(
    "graphql",
    "What GraphQL queries cost, and how large they may be.",
    (
        KeySchema("query_points", make_integer_kind(0, 1_000_000), "Secondary points of a query.", "`1`"),
        KeySchema("mutation_points", make_integer_kind(0, 1_000_000), "Secondary points of a mutation.", "`5`"),
        KeySchema("content_mutations", TEXTS, "Mutations that make content.", "none"),
        KeySchema("nodes_most", make_integer_kind(1, 100_000_000), "Nodes that one query may return.", "`500000`"),
        KeySchema("tokens_most", make_integer_kind(1, 1_000_000), "Words and signs in a query.", "`10000`"),
        KeySchema("depth_most", make_integer_kind(1, 200), "Levels of nesting.", "`100`"),
        KeySchema("entries_most", make_integer_kind(1, 10_000), "Queries in one array.", "`100`"),
    ),
)

BAN: Final = TableSchema(
    "ban",
    "When those who go on while they are limited are banned: the app, else the token, else the address.",
    (
        KeySchema("refusals_least", make_integer_kind(1, 1_000_000), "Refusals in a minute that are let pass.", "`60`"),
        KeySchema(
            "percent",
            make_integer_kind(0, 100),
            "The same as a share of the limit that refuses; the larger counts.",
            "`10`",
        ),
        KeySchema("minutes", make_integer_kind(1, 60), "How many minutes running there must be too many.", "`3`"),
        KeySchema("grace", DURATION, "How long a refusal must have been told before the next one counts.", '`"2s"`'),
        KeySchema("first", DURATION, "The length of the first ban; each further one doubles it.", '`"10m"`'),
        KeySchema("most", DURATION, "The longest ban.", '`"24h"`'),
        KeySchema(
            "forget", DURATION, "After so long without a refusal that counts, the next ban is a first one.", '`"24h"`'
        ),
        KeySchema("shadow", FLAG, "Only report who would be banned.", "`false`"),
        KeySchema("addresses_shadow", FLAG, "The same for addresses only, which many people may share.", "`true`"),
    ),
)

RULES_TABLES: Final = (ROOT, RULE, SCALE, ENDPOINT, POINTS, GRAPHQL, BAN)

_LOGIN: Final = KeySchema("login", ACCOUNT, "The login.", REQUIRED)
_ID: Final = make_integer_kind(1, 1 << 53)

TOKEN: Final = TableSchema(
    "token",
    "A token, in a list `tokens` of a user, an installation or a repository. Only its hash is written down.",
    (
        KeySchema("sha256", SHA256, "Of the whole token.", REQUIRED),
        KeySchema("name", TEXT, "For people.", NO_DEFAULT),
        KeySchema("app", _ID, "For a user's token, the app that acts with it.", "none: a personal token"),
        KeySchema("scopes", TEXTS, "What it may be used for.", NO_DEFAULT),
        KeySchema("expires", TIMESTAMP, "When it ends.", "never"),
        KeySchema("revoked", FLAG, "Whether it was taken back.", "`false`"),
    ),
    is_list=True,
)
USER: Final = TableSchema(
    "user",
    "A person.",
    (_LOGIN, KeySchema("id", _ID, "The number that messages name.", NO_DEFAULT)),
    is_list=True,
)
ORGANIZATION: Final = TableSchema(
    "organization",
    "An organization.",
    (
        _LOGIN,
        KeySchema("tier", TEXT, "`enterprise`, or any other text.", NO_DEFAULT),
        KeySchema(
            "enterprise", TEXT, "The enterprise that it belongs to; then it is of the enterprise tier.", NO_DEFAULT
        ),
        KeySchema("members", TEXTS, "Logins of users.", NO_DEFAULT),
        KeySchema("owners", TEXTS, "Logins of users who may see its activity. They are members too.", NO_DEFAULT),
    ),
    is_list=True,
)
ENTERPRISE: Final = TableSchema(
    "enterprise", "An enterprise.", (KeySchema("name", ACCOUNT, "Its name in paths.", REQUIRED),), is_list=True
)
APP: Final = TableSchema(
    "app",
    "An app.",
    (
        KeySchema("id", _ID, "Its number.", REQUIRED),
        KeySchema("owner", TEXT, "The account that owns it.", REQUIRED),
        KeySchema(
            "oauth", FLAG, "Whether it is an OAuth app.", "`false`; `true` with a client secret and no installations"
        ),
        KeySchema("client_id", TEXT, "The name it signs in with.", NO_DEFAULT),
        KeySchema("client_secret_sha256", SHA256, "Of its client secret.", NO_DEFAULT),
        KeySchema("approved_by", TEXTS, "Organizations that approved it.", NO_DEFAULT),
    ),
    is_list=True,
)
INSTALLATION: Final = TableSchema(
    "installation",
    "Where an app is installed, in a list `installations` of the app.",
    (
        KeySchema("id", _ID, "Its number.", REQUIRED),
        KeySchema("on", TEXT, "The user, organization or enterprise that it is installed on.", REQUIRED),
        KeySchema("repositories", make_integer_kind(0, 1 << 31), "How many repositories it reaches.", "`0`"),
        KeySchema("members", make_integer_kind(0, 1 << 31), "How many users the organization has.", "`0`"),
    ),
    is_list=True,
)
REPOSITORY: Final = TableSchema(
    "repository",
    "A repository whose workflows call.",
    (KeySchema("name", TEXT, "With its owner: `acme/site`.", REQUIRED),),
    is_list=True,
)
DIRECTORY_TABLES: Final = (USER, ORGANIZATION, ENTERPRISE, APP, INSTALLATION, REPOSITORY, TOKEN)

# Lists inside of a table's entries.
INNER_LISTS: Final[Mapping[str, Mapping[str, TableSchema]]] = {
    "user": {"tokens": TOKEN},
    "app": {"installations": INSTALLATION},
    "installation": {"tokens": TOKEN},
    "repository": {"tokens": TOKEN},
}
