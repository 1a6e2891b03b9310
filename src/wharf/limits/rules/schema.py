"""Every table and key of a rules file and a directory file: its kind, what it is for, and its default.

The readers and the page in the documentation both come from these declarations.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.limits.core.rule import Algorithm, Connection, Counts, Interface, PerItem, StoreLoss
from wharf.limits.rules.values import (
    ACCOUNT,
    CEILINGS,
    DURATION,
    FLAG,
    MOMENT,
    NAME,
    SHA256,
    TEXT,
    TEXTS,
    Kind,
    number,
    one_of,
    some_of,
)


class Key(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    about: str
    default: str
    """As the page says it. `none` is for what need not be there, `needed` for what must."""


class Table(msgspec.Struct, frozen=True):
    name: str
    about: str
    keys: tuple[Key, ...]
    is_list: bool = False

    def key(self, name: str) -> Key | None:
        return next((key for key in self.keys if key.name == name), None)


NEEDED: Final = "needed"
NONE: Final = "none"

TOP: Final = Table(
    "",
    "Keys outside of any table.",
    (
        Key(
            "profile",
            TEXT,
            "Built-in rules to start from: `code-host`, `cluster` (the limits of the cluster's own API), or `none`.",
            "`code-host`",
        ),
        Key(
            "disclose_secondary",
            FLAG,
            "Whether secondary limits are told in `RateLimit` and at `/rate_limit`, not only in their refusals.",
            "`false`",
        ),
        Key("documentation", TEXT, "The page that refusals refer to.", "`/docs/rate-limits`"),
        Key(
            "keys_most",
            number(1, 100_000_000),
            "How many addresses without a credential are counted one by one. Further ones share the bucket of their "
            "/24 or /48 network.",
            "`1000000`",
        ),
    ),
)

RULE: Final = Table(
    "rule",
    "A limit. With `resource` it is a primary limit, of which each request meets one: the first in the file whose "
    "`match` and `ceiling` fit, those of the profile last. Without, it is a secondary limit, and each request meets "
    "all that fit. A rule with the name of a built-in one changes only the keys that it gives.",
    (
        Key("name", NAME, "The name. Counters are kept under it, so a new name is a new counter.", NEEDED),
        Key("was", NAME, "The name before it was renamed: its counters move over.", NONE),
        Key(
            "match",
            TEXTS,
            "Patterns of method and path, such as `GET /search/*` or `POST,PATCH /repos/{owner}/{repo}/issues`. A "
            "segment is text, `{name}`, or a `{name}` with text after it; a last `*` stands for one or more segments. "
            "`*` in place of the method is every method, and `GET` is `HEAD` too.",
            "every request",
        ),
        Key("interface", some_of(Interface), "Which interfaces it is about; endpoints say which they speak.", "all"),
        Key("resource", NAME, "The primary bucket, as `x-ratelimit-resource` tells it.", "none: a secondary limit"),
        Key("counts", one_of(Counts), "What is counted.", '`"requests"`'),
        Key(
            "algorithm",
            one_of(Algorithm),
            "How it is counted: `window` opens with the first request and has a fixed end; `slices` slides, and never "
            "lets more than the ceiling through in any window; `leases` counts what runs at once; `meter` is charged "
            "afterwards and may go into debt.",
            "by what is counted",
        ),
        Key(
            "scope",
            TEXTS,
            "Whose use is counted: `caller` (what the credential counts against), `address`, `user`, `app`, "
            "`installation`, `repository` or `token`, or a pair of these. Where a credential has no such thing, "
            "the caller stands in.",
            '`"caller"`',
        ),
        Key("per_endpoint", FLAG, "Whether each endpoint has a counter of its own.", "`false`"),
        Key("window", DURATION, "The length of the window.", '`"1h"`'),
        Key("slices", number(1, 60), "In how many parts a sliding window is counted.", "`12`"),
        Key(
            "ceiling",
            CEILINGS,
            "What may be used in a window. Callers that it does not name do not meet the rule; the enterprise kinds "
            "take the ordinary one where they are not named. Over a built-in rule, a table changes those that it names, and a "
            "number all. CPU time is in milliseconds.",
            NEEDED,
        ),
        Key("connection", one_of(Connection), "For `leases`, the class of requests that hold a slot.", '`"plain"`'),
        Key(
            "keys_most",
            number(0, 1_000_000),
            "How many counters one owner may have, where a rule counts by endpoint or by a pair. Further ones share "
            "one. 0 is without bound.",
            "`256`",
        ),
        Key("objects_most", number(1, 100_000), "Objects in one large-file batch; more are refused with 413.", NONE),
        Key("hidden", FLAG, "A secondary limit that callers are never told of by name.", "`false`"),
        Key("shadow", FLAG, "Count and report, and refuse nobody.", "`false`"),
        Key(
            "enforce",
            number(0, 100),
            "The share of owners that it is enforced for, in per cent. For the others it is in shadow.",
            "`100`",
        ),
        Key(
            "on_store_loss",
            one_of(StoreLoss),
            "What is answered while the counters cannot be reached: `open` admits, `closed` refuses, `local` counts "
            "in the process with a bound.",
            '`"local"`',
        ),
        Key(
            "status",
            number(200, 599),
            "The status of its refusals.",
            "`403`; `429` for large files; `200` for the primary limit of GraphQL",
        ),
    ),
    is_list=True,
)

SCALE: Final = Table(
    "rule.scale",
    "How the ceiling of an installation grows. Enterprise installations do not scale.",
    (
        Key("per_repository", number(0, 1_000_000), "For each repository.", "`0`"),
        Key("per_user", number(0, 1_000_000), "For each user of the organization.", "`0`"),
        Key("above", number(0, 1_000_000), "How many there must be more than.", "`20`"),
        Key("most", number(1, 1_000_000_000), "It never grows above this.", "no bound"),
        Key(
            "per_item",
            one_of(PerItem),
            "Whether, once there are more than `above`, all of them count or those beyond.",
            '`"all"`',
        ),
    ),
)

ENDPOINT: Final = Table(
    "endpoint",
    "What requests to an endpoint cost and are. The most specific pattern that matches decides.",
    (
        Key("match", TEXTS, "Patterns, as for a rule. One without `*` names the endpoint.", NEEDED),
        Key("points", number(0, 1_000_000), "Points of a request.", "by method"),
        Key("content", FLAG, "Whether its requests make content.", "`false`"),
        Key("interface", one_of(Interface), "What it speaks.", '`"rest"`'),
        Key(
            "free",
            FLAG,
            "Counts against no primary limit and never leads to a ban: for the endpoint that shows the limits.",
            "`false`",
        ),
        Key("hidden", FLAG, "Its cost is kept from callers: limits fed by it show no remaining.", "`false`"),
    ),
    is_list=True,
)

POINTS: Final = Table(
    "points",
    "Points of a request by method.",
    (
        Key("read", number(0, 1_000_000), "GET, HEAD and OPTIONS.", "`1`"),
        Key("write", number(0, 1_000_000), "All others, unknown methods too.", "`5`"),
    ),
)

GRAPHQL: Final = Table(
    "graphql",
    "What GraphQL queries cost, and how large they may be.",
    (
        Key("query_points", number(0, 1_000_000), "Secondary points of a query.", "`1`"),
        Key("mutation_points", number(0, 1_000_000), "Secondary points of a mutation.", "`5`"),
        Key("content_mutations", TEXTS, "Mutations that make content.", "none"),
        Key("nodes_most", number(1, 100_000_000), "Nodes that one query may return.", "`500000`"),
        Key("tokens_most", number(1, 1_000_000), "Words and signs in a query.", "`10000`"),
        Key("depth_most", number(1, 200), "Levels of nesting.", "`100`"),
        Key("entries_most", number(1, 10_000), "Queries in one array.", "`100`"),
    ),
)

BAN: Final = Table(
    "ban",
    "When those who go on while they are limited are banned: the app, else the token, else the address.",
    (
        Key("refusals_least", number(1, 1_000_000), "Refusals in a minute that are let pass.", "`60`"),
        Key("percent", number(0, 100), "The same as a share of the limit that refuses; the larger counts.", "`10`"),
        Key("minutes", number(1, 60), "How many minutes running there must be too many.", "`3`"),
        Key("grace", DURATION, "How long a refusal must have been told before the next one counts.", '`"2s"`'),
        Key("first", DURATION, "The length of the first ban; each further one doubles it.", '`"10m"`'),
        Key("most", DURATION, "The longest ban.", '`"24h"`'),
        Key("forget", DURATION, "After so long without a refusal that counts, the next ban is a first one.", '`"24h"`'),
        Key("shadow", FLAG, "Only report who would be banned.", "`false`"),
        Key("addresses_shadow", FLAG, "The same for addresses only, which many people may share.", "`true`"),
    ),
)

RULES_TABLES: Final = (TOP, RULE, SCALE, ENDPOINT, POINTS, GRAPHQL, BAN)

_LOGIN: Final = Key("login", ACCOUNT, "The login.", NEEDED)
_ID: Final = number(1, 1 << 53)

TOKEN: Final = Table(
    "token",
    "A token, in a list `tokens` of a user, an installation or a repository. Only its hash is written down.",
    (
        Key("sha256", SHA256, "Of the whole token.", NEEDED),
        Key("name", TEXT, "For people.", NONE),
        Key("app", _ID, "For a user's token, the app that acts with it.", "none: a personal token"),
        Key("scopes", TEXTS, "What it may be used for.", NONE),
        Key("expires", MOMENT, "When it ends.", "never"),
        Key("revoked", FLAG, "Whether it was taken back.", "`false`"),
    ),
    is_list=True,
)
USER: Final = Table(
    "user",
    "A person.",
    (_LOGIN, Key("id", _ID, "The number that messages name.", NONE)),
    is_list=True,
)
ORGANIZATION: Final = Table(
    "organization",
    "An organization.",
    (
        _LOGIN,
        Key("tier", TEXT, "`enterprise`, or any other text.", NONE),
        Key("enterprise", TEXT, "The enterprise that it belongs to; then it is of the enterprise tier.", NONE),
        Key("members", TEXTS, "Logins of users.", NONE),
        Key("owners", TEXTS, "Logins of users who may see its activity. They are members too.", NONE),
    ),
    is_list=True,
)
ENTERPRISE: Final = Table(
    "enterprise", "An enterprise.", (Key("name", ACCOUNT, "Its name in paths.", NEEDED),), is_list=True
)
APP: Final = Table(
    "app",
    "An app.",
    (
        Key("id", _ID, "Its number.", NEEDED),
        Key("owner", TEXT, "The account that owns it.", NEEDED),
        Key("oauth", FLAG, "Whether it is an OAuth app.", "`false`; `true` with a client secret and no installations"),
        Key("client_id", TEXT, "The name it signs in with.", NONE),
        Key("client_secret_sha256", SHA256, "Of its client secret.", NONE),
        Key("approved_by", TEXTS, "Organizations that approved it.", NONE),
    ),
    is_list=True,
)
INSTALLATION: Final = Table(
    "installation",
    "Where an app is installed, in a list `installations` of the app.",
    (
        Key("id", _ID, "Its number.", NEEDED),
        Key("on", TEXT, "The user, organization or enterprise that it is installed on.", NEEDED),
        Key("repositories", number(0, 1 << 31), "How many repositories it reaches.", "`0`"),
        Key("members", number(0, 1 << 31), "How many users the organization has.", "`0`"),
    ),
    is_list=True,
)
REPOSITORY: Final = Table(
    "repository",
    "A repository whose workflows call.",
    (Key("name", TEXT, "With its owner: `acme/site`.", NEEDED),),
    is_list=True,
)
DIRECTORY_TABLES: Final = (USER, ORGANIZATION, ENTERPRISE, APP, INSTALLATION, REPOSITORY, TOKEN)

# Lists inside of a table's entries.
INNER_LISTS: Final[Mapping[str, Mapping[str, Table]]] = {
    "user": {"tokens": TOKEN},
    "app": {"installations": INSTALLATION},
    "installation": {"tokens": TOKEN},
    "repository": {"tokens": TOKEN},
}
