"""Every table and key of a rules file and a directory file: its kind, description and default.

The readers and the generated documentation use these declarations.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.limits.core.rule import (
    Algorithm,
    ConnectionClass,
    CountedUnit,
    EscapedSlash,
    Interface,
    MethodOverride,
    PathDifference,
    PerItem,
    SegmentTreatment,
    StoreOutagePolicy,
)
from wharf.limits.rules.values import (
    ACCOUNT,
    CEILING,
    CEILINGS,
    DURATION,
    FLAG,
    FORMATS,
    NAME,
    PATH_PREFIX,
    SHA256,
    TEXT,
    TEXTS,
    TIMESTAMP,
    TomlValueKind,
    make_choice_kind,
    make_choices_kind,
    make_integer_kind,
    make_integers_kind,
)


class KeySchema(msgspec.Struct, frozen=True):
    """One key of a TOML table: its kind, description and default."""

    name: str
    kind: TomlValueKind
    description: str
    default: str
    """As the documentation shows it: `none` for optional keys, `needed` for required ones."""


class TableSchema(msgspec.Struct, frozen=True):
    """The keys of one TOML table, or of each entry in a list of tables (`is_list`)."""

    name: str
    description: str
    keys: tuple[KeySchema, ...]
    is_list: bool = False

    def find_key(self, name: str) -> KeySchema | None:
        """Return the key with this name; `None` if the table has no such key."""
        return next((key for key in self.keys if key.name == name), None)


REQUIRED: Final = "needed"
"""The `default` of a key that must be set."""
NO_DEFAULT: Final = "none"
"""The `default` of an optional key without a default value."""

ROOT: Final = TableSchema(
    "",
    "Keys outside of any table.",
    (
        KeySchema(
            "profile",
            TEXT,
            "Built-in rules to start from: `code-host`, `gitea`, `forgejo`, `gitlab`, `cluster` (the limits of the "
            "cluster's own API), or `none`.",
            "`code-host`",
        ),
        KeySchema(
            "base_path",
            PATH_PREFIX,
            "The path of the API, such as `/api/v3`. All patterns are relative to it, except those that begin with "
            "`outside:`. The limiter's own pages, such as `/rate_limit`, lie below it too.",
            "that of the profile; `/` for `code-host`",
        ),
        KeySchema(
            "site_path",
            PATH_PREFIX,
            "The path below which the host serves everything, if that is not `/`. `base_path` and the patterns that "
            "begin with `outside:` lie below it.",
            "`/`",
        ),
        KeySchema(
            "owner_paths",
            TEXTS,
            "Patterns of the paths that name the owner of a resource. They decide to which organization a request belongs in its "
            "activity, and which ceiling a workflow has. The first one that matches applies. `{owner}` is the account and "
            "`{repository}` its repository; `**` is an account with nested groups; `{project}` and `{group}` are an id or a path "
            "such as `acme%2Fsite`; `{enterprise}` is an enterprise. The patterns are relative to `base_path`; those that begin "
            "with `outside:` match nothing without it.",
            "those of the profile",
        ),
        KeySchema(
            "shadow",
            FLAG,
            "Count and report, but refuse no request: puts all rules and bans in shadow mode, whatever they set "
            "themselves. Replies then have no rate limit headers.",
            "`false`",
        ),
        KeySchema(
            "disclose_secondary",
            FLAG,
            "Whether `RateLimit` headers and `/rate_limit` report secondary limits, not only their refusals.",
            "`false`",
        ),
        KeySchema("documentation", TEXT, "The page that refusals link to.", "`/docs/rate-limits`"),
        KeySchema(
            "keys_most",
            make_integer_kind(1, 100_000_000),
            "The maximum number of addresses without a credential that are counted separately. Others share the "
            "bucket of their /24 or /48 network.",
            "`1000000`",
        ),
    ),
)

RULE: Final = TableSchema(
    "rule",
    "A limit on requests. A rule with `resource` is a primary limit. Exactly one primary limit applies to each request: the "
    "first in the file whose `match` and `ceiling` fit the request; the rules of the profile follow those of the file. A "
    "rule without `resource` is a secondary limit. Every secondary limit that fits the request applies to it. A rule with "
    "the name of a built-in rule changes only the keys that it sets.",
    (
        KeySchema("name", NAME, "The name. It identifies the counters, so a new name starts new counters.", REQUIRED),
        KeySchema("was", NAME, "The previous name of a renamed rule, whose counters are kept.", NO_DEFAULT),
        KeySchema(
            "match",
            TEXTS,
            "Patterns of method and path, such as `GET /search/*` or `POST,PATCH /repos/{owner}/{repo}/issues`. A "
            "segment is text, `{name}`, or a `{name}` with text after it; a last `*` stands for one or more segments, "
            "and one `**` before other segments for 1 to 24 segments. "
            "The method `*` stands for all methods, and `GET` includes `HEAD`. Paths are relative to `base_path`; "
            "`GET outside:/{owner}/*` is for paths outside of it.",
            "every request",
        ),
        KeySchema(
            "interface",
            make_choices_kind(Interface),
            "The interfaces that it applies to. The `interface` of an endpoint is set in `[[endpoint]]`.",
            "all",
        ),
        KeySchema(
            "resource", NAME, "The name of the primary bucket in `x-ratelimit-resource`.", "none: a secondary limit"
        ),
        KeySchema("counts", make_choice_kind(CountedUnit), "What is counted.", '`"requests"`'),
        KeySchema(
            "algorithm",
            make_choice_kind(Algorithm),
            "How it counts: `window` starts with the first request and has a fixed end; `slices` is a sliding window "
            "that never admits more than the ceiling; `leases` counts running requests; `meter` is charged after the "
            "request and can exceed the ceiling.",
            "depends on `counts`",
        ),
        KeySchema(
            "scope",
            TEXTS,
            "Whose usage is counted: `caller` (the owner of the credential), `address`, `user`, `app`, "
            "`installation`, `repository` or `token`, or a pair of these. If a credential has no such member, "
            "the caller is used instead.",
            '`"caller"`',
        ),
        KeySchema("per_endpoint", FLAG, "Whether each endpoint has its own counter.", "`false`"),
        KeySchema("window", DURATION, "The length of the window.", '`"1h"`'),
        KeySchema("slices", make_integer_kind(1, 60), "The number of parts of a sliding window.", "`12`"),
        KeySchema(
            "ceiling",
            CEILINGS,
            "The maximum in a window. The rule does not apply to classes of callers that are not named; an enterprise "
            "class that is not named has the ceiling of the ordinary class. For a built-in rule, a table changes the "
            "classes that it names, and a number changes all. CPU time is in milliseconds.",
            REQUIRED,
        ),
        KeySchema(
            "connection",
            make_choice_kind(ConnectionClass),
            "For `leases`, the class of requests that are counted.",
            '`"plain"`',
        ),
        KeySchema(
            "keys_most",
            make_integer_kind(0, 1_000_000),
            "The maximum number of counters of one owner, for rules that count by endpoint or by a pair. All others "
            "share one counter. 0 means no maximum.",
            "`256`",
        ),
        KeySchema(
            "objects_most",
            make_integer_kind(1, 100_000),
            "The maximum number of objects in one large-file batch. Larger batches are refused with 413.",
            NO_DEFAULT,
        ),
        KeySchema("hidden", FLAG, "Whether the name of this secondary limit is hidden from callers.", "`false`"),
        KeySchema("shadow", FLAG, "Count and report, but refuse no request.", "`false`"),
        KeySchema(
            "enforce",
            make_integer_kind(0, 100),
            "The share of owners for whom it is enforced, in per cent. For the others it is in shadow mode.",
            "`100`",
        ),
        KeySchema(
            "on_store_loss",
            make_choice_kind(StoreOutagePolicy),
            "What happens while the store is unavailable: `open` admits, `closed` refuses, `local` counts in this "
            "process up to a share of the ceiling.",
            '`"local"`',
        ),
        KeySchema(
            "status",
            make_integer_kind(200, 599),
            "The HTTP status of its refusals.",
            "`403`; `429` for large files; `200` for the primary limit of GraphQL",
        ),
    ),
    is_list=True,
)

SCALE: Final = TableSchema(
    "rule.scale",
    "How the ceiling of an installation grows. Ceilings of enterprise installations are fixed.",
    (
        KeySchema("per_repository", make_integer_kind(0, 1_000_000), "Added for each repository.", "`0`"),
        KeySchema("per_user", make_integer_kind(0, 1_000_000), "Added for each user of the organization.", "`0`"),
        KeySchema(
            "above",
            make_integer_kind(0, 1_000_000),
            "The ceiling grows if there are more repositories (or users) than this.",
            "`20`",
        ),
        KeySchema("most", make_integer_kind(1, 1_000_000_000), "The highest ceiling.", "no maximum"),
        KeySchema(
            "per_item",
            make_choice_kind(PerItem),
            "Whether `all` items count once there are more than `above`, or only those `beyond`.",
            '`"all"`',
        ),
    ),
)

ENDPOINT: Final = TableSchema(
    "endpoint",
    "The cost and properties of requests to an endpoint. The most specific pattern that matches applies.",
    (
        KeySchema(
            "match", TEXTS, "Patterns, as for a rule. A pattern without `*` is the name of the endpoint.", REQUIRED
        ),
        KeySchema("points", make_integer_kind(0, 1_000_000), "The points of a request.", "depends on the method"),
        KeySchema("content", FLAG, "Whether its requests create content.", "`false`"),
        KeySchema("interface", make_choice_kind(Interface), "The interface of the endpoint.", '`"rest"`'),
        KeySchema(
            "free",
            FLAG,
            "Charge no primary limit and never lead to a ban, such as for the endpoint that shows the limits.",
            "`false`",
        ),
        KeySchema(
            "hidden", FLAG, "Whether the cost is hidden: limits that count it do not report what remains.", "`false`"
        ),
        KeySchema(
            "waiting",
            FLAG,
            "Whether its requests mostly wait, such as long polls and event streams. They are counted by `leases` rules "
            'with `connection = "waiting"` instead of those with `"plain"`, and their elapsed time is not CPU time.',
            "`false`",
        ),
        KeySchema(
            "content_marked",
            FLAG,
            "Whether the service marks with `x-wharf-content` which requests created content. Requests to the endpoint "
            "are refused while a content limit of the caller is full, and counted by it only if they are marked.",
            "`false`",
        ),
    ),
    is_list=True,
)

POINTS: Final = TableSchema(
    "points",
    "Points of a request by method.",
    (
        KeySchema("read", make_integer_kind(0, 1_000_000), "GET, HEAD and OPTIONS.", "`1`"),
        KeySchema("write", make_integer_kind(0, 1_000_000), "All other methods.", "`5`"),
    ),
)

GRAPHQL: Final = TableSchema(
    "graphql",
    "The cost of GraphQL queries, and their maximum size.",
    (
        KeySchema("query_points", make_integer_kind(0, 1_000_000), "Secondary points of a query.", "`1`"),
        KeySchema("mutation_points", make_integer_kind(0, 1_000_000), "Secondary points of a mutation.", "`5`"),
        KeySchema("content_mutations", TEXTS, "Mutations that create content.", "none"),
        KeySchema(
            "nodes_most",
            make_integer_kind(1, 100_000_000),
            "The maximum number of nodes that one query can return.",
            "`500000`",
        ),
        KeySchema(
            "tokens_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of tokens in all queries of a body.",
            "`10000`",
        ),
        KeySchema("depth_most", make_integer_kind(1, 200), "The maximum depth of nesting.", "`100`"),
        KeySchema("entries_most", make_integer_kind(1, 10_000), "The maximum number of queries in one array.", "`100`"),
    ),
)

PATHS: Final = TableSchema(
    "paths",
    "How the service reads paths and methods, where services differ. With the defaults, no spelling of a path avoids a limit: if a "
    "service may read a path in several ways, the limits of all these ways apply. Set what you know about your service.",
    (
        KeySchema(
            "dot_segments",
            make_choice_kind(SegmentTreatment),
            "Segments `.` and `..`: `refuse` replies with 400, `keep` leaves them as they are. With `remove`, `wharf gateway` "
            "resolves them before it counts and forwards the request; the middlewares and the check endpoint do not change "
            "requests, so they reply with 400.",
            '`"refuse"`',
        ),
        KeySchema(
            "empty_segments",
            make_choice_kind(SegmentTreatment),
            "Empty segments, as in `//`: `refuse` replies with 400, `keep` leaves them as they are. With `remove`, `wharf "
            "gateway` writes one slash before it counts and forwards the request; the middlewares and the check endpoint do "
            "not change requests, so they reply with 400.",
            '`"refuse"`',
        ),
        KeySchema(
            "escaped_slash",
            make_choice_kind(EscapedSlash),
            "How the service reads `%2F`: as a `separator` like a slash, as `text` of its segment, or not known (`both`). "
            "`refuse` replies with 400.",
            '`"both"`',
        ),
        KeySchema(
            "parameters",
            make_choice_kind(PathDifference),
            "Whether the service ignores `;` and the text after it in a segment (`ignore`), reads it as text (`exact`), or "
            "it is not known (`both`).",
            '`"both"`',
        ),
        KeySchema(
            "case",
            make_choice_kind(PathDifference),
            "Whether the service ignores the difference between `/Search` and `/search` (`ignore`), has different paths "
            "for them (`exact`), or it is not known (`both`).",
            '`"both"`',
        ),
        KeySchema(
            "formats",
            FORMATS,
            "Formats such as `json`: a request to `/search.json` also meets the limits of `/search`. `*` stands for any "
            "format of up to 16 letters and digits. Write `[]` if the service has no formats.",
            '`"*"`',
        ),
        KeySchema(
            "method_override",
            make_choice_kind(MethodOverride),
            "Whether the service serves a request as another method that it names in `X-HTTP-Method-Override`, "
            "`X-HTTP-Method`, `X-Method-Override` or the query parameter `_method`. `ignore`: it does not. `both`: it may, "
            "so the limits of both methods apply. `forms`: also for the field `_method` of a form, so each form sent with "
            "POST also meets the limits of PUT, PATCH and DELETE. `bodies`: the same for each JSON body sent with POST too. "
            "The limiter does not read these bodies, so this also works behind proxies that send it none. `refuse` replies "
            "with 400.",
            '`"both"`',
        ),
    ),
)

BAN: Final = TableSchema(
    "ban",
    "A ban refuses all requests of a caller for a time. It starts when a caller sends too many requests after a limit has "
    "refused it. The ban applies to the app of the caller; without an app to its token, and without a token to its address.",
    (
        KeySchema(
            "refusals_least", make_integer_kind(1, 1_000_000), "Refusals in a minute that do not lead to a ban.", "`60`"
        ),
        KeySchema(
            "percent",
            make_integer_kind(0, 100),
            "The same as a share of the ceiling that refuses, in per cent. The larger number applies.",
            "`10`",
        ),
        KeySchema(
            "minutes",
            make_integer_kind(1, 60),
            "The number of consecutive minutes with too many refusals before a ban.",
            "`3`",
        ),
        KeySchema(
            "grace", DURATION, "A refusal counts only if the previous one was sent at least this long before.", '`"2s"`'
        ),
        KeySchema("first", DURATION, "The length of the first ban. Each further ban is twice as long.", '`"10m"`'),
        KeySchema("most", DURATION, "The longest ban.", '`"24h"`'),
        KeySchema(
            "forget",
            DURATION,
            "After this time without a counted refusal, the next ban is a first ban again.",
            '`"24h"`',
        ),
        KeySchema("shadow", FLAG, "Only report callers that would be banned.", "`false`"),
        KeySchema(
            "addresses_shadow", FLAG, "The same for addresses only, because many users can share an address.", "`true`"
        ),
    ),
)

DOMAIN: Final = TableSchema(
    "domain",
    "A domain of descriptors, which a proxy such as Envoy sends with each of its requests. The limits of a domain are in its "
    "list `descriptors`. A descriptor of a domain that the file does not name has no limit.",
    (KeySchema("name", TEXT, "The domain that the proxy sends.", REQUIRED),),
    is_list=True,
)

DESCRIPTOR: Final = TableSchema(
    "domain.descriptors",
    "An entry of descriptors, in a list `descriptors` of a domain or of another entry. With `ceiling` it is a limit on the "
    "descriptors that end with this entry. The most specific limit that matches all entries of a descriptor applies.",
    (
        KeySchema("key", TEXT, "The key of the entry.", REQUIRED),
        KeySchema(
            "value",
            TEXT,
            "The value of the entry; a last `*` matches every end. Each value that a request sends has a counter of its own.",
            "every value",
        ),
        KeySchema(
            "ceiling",
            CEILING,
            "The maximum in a window. Without it, the entry only leads to those inside it.",
            NO_DEFAULT,
        ),
        KeySchema("window", DURATION, "The length of the window.", '`"1m"`'),
        KeySchema(
            "name",
            NAME,
            "The name of the limit, which identifies the counters.",
            "built from the domain and the entries",
        ),
        KeySchema("was", NAME, "The previous name of a renamed limit, whose counters are kept.", NO_DEFAULT),
        KeySchema(
            "algorithm",
            make_choice_kind(Algorithm, (Algorithm.WINDOW, Algorithm.SLICES, Algorithm.METER)),
            "How it counts, as for a rule. A `meter` admits while anything is left and counts all hits, also those of "
            "refused requests: for costs that are known only after the request.",
            '`"window"`',
        ),
        KeySchema("slices", make_integer_kind(1, 60), "The number of parts of a sliding window.", "`12`"),
        KeySchema("hidden", FLAG, "Whether headers and bodies of replies leave out this limit.", "`false`"),
        KeySchema("shadow", FLAG, "Count and report, but refuse no request.", "`false`"),
        KeySchema(
            "enforce",
            make_integer_kind(0, 100),
            "The share of descriptors for which it is enforced, in per cent. For the others it is in shadow mode.",
            "`100`",
        ),
        KeySchema(
            "on_store_loss",
            make_choice_kind(StoreOutagePolicy),
            "What happens while the store is unavailable, as for a rule.",
            '`"local"`',
        ),
    ),
    is_list=True,
)

RULES_TABLES: Final = (ROOT, RULE, SCALE, ENDPOINT, POINTS, GRAPHQL, PATHS, BAN, DOMAIN, DESCRIPTOR)

_LOGIN: Final = KeySchema("login", ACCOUNT, "The login.", REQUIRED)
_ID: Final = make_integer_kind(1, 1 << 53)

TOKEN: Final = TableSchema(
    "token",
    "A token, in a list `tokens` of a user, an installation or a repository. The file holds only its hash.",
    (
        KeySchema("sha256", SHA256, "The SHA-256 of the token.", REQUIRED),
        KeySchema("name", TEXT, "A description for operators.", NO_DEFAULT),
        KeySchema("app", _ID, "For a token of a user, the app that uses it.", "none: a personal token"),
        KeySchema("scopes", TEXTS, "The OAuth scopes of the token.", NO_DEFAULT),
        KeySchema("expires", TIMESTAMP, "When it expires.", "never"),
        KeySchema("revoked", FLAG, "Whether it is revoked.", "`false`"),
    ),
    is_list=True,
)
USER: Final = TableSchema(
    "user",
    "A user.",
    (_LOGIN, KeySchema("id", _ID, "The user ID in messages.", NO_DEFAULT)),
    is_list=True,
)
ORGANIZATION: Final = TableSchema(
    "organization",
    "An organization.",
    (
        _LOGIN,
        KeySchema(
            "ids",
            make_integers_kind(1, 1 << 53),
            "The ids by which paths name it or its groups, for its activity, such as 7 in `/api/v4/groups/7`.",
            NO_DEFAULT,
        ),
        KeySchema("tier", TEXT, "`enterprise`, or any other text.", NO_DEFAULT),
        KeySchema(
            "enterprise", TEXT, "The enterprise that it belongs to. This gives it the enterprise tier.", NO_DEFAULT
        ),
        KeySchema("members", TEXTS, "Logins of users.", NO_DEFAULT),
        KeySchema("owners", TEXTS, "Logins of users who may see its activity. They are members too.", NO_DEFAULT),
    ),
    is_list=True,
)
ENTERPRISE: Final = TableSchema(
    "enterprise", "An enterprise.", (KeySchema("name", ACCOUNT, "The name in paths.", REQUIRED),), is_list=True
)
APP: Final = TableSchema(
    "app",
    "An app.",
    (
        KeySchema("id", _ID, "The id.", REQUIRED),
        KeySchema("owner", TEXT, "The account that owns it.", REQUIRED),
        KeySchema(
            "oauth", FLAG, "Whether it is an OAuth app.", "`false`; `true` with a client secret and no installations"
        ),
        KeySchema("client_id", TEXT, "The client id for basic authentication.", NO_DEFAULT),
        KeySchema("client_secret_sha256", SHA256, "The SHA-256 of its client secret.", NO_DEFAULT),
        KeySchema("approved_by", TEXTS, "Organizations that approved it.", NO_DEFAULT),
    ),
    is_list=True,
)
INSTALLATION: Final = TableSchema(
    "installation",
    "Where an app is installed, in a list `installations` of the app.",
    (
        KeySchema("id", _ID, "The id.", REQUIRED),
        KeySchema("on", TEXT, "The user, organization or enterprise that it is installed on.", REQUIRED),
        KeySchema(
            "repositories", make_integer_kind(0, 1 << 31), "The number of repositories that it can access.", "`0`"
        ),
        KeySchema("members", make_integer_kind(0, 1 << 31), "The number of users in the organization.", "`0`"),
    ),
    is_list=True,
)
REPOSITORY: Final = TableSchema(
    "repository",
    "A repository whose workflows send requests, or that paths name by its id.",
    (
        KeySchema("name", TEXT, "The name with its owner: `acme/site`, or `acme/web/site` in a group.", REQUIRED),
        KeySchema(
            "id", _ID, "The id by which paths name it, for activity, such as 42 in `/api/v4/projects/42`.", NO_DEFAULT
        ),
    ),
    is_list=True,
)
DIRECTORY_TABLES: Final = (USER, ORGANIZATION, ENTERPRISE, APP, INSTALLATION, REPOSITORY, TOKEN)

# Lists inside the entries of a table.
INNER_LISTS: Final[Mapping[str, Mapping[str, TableSchema]]] = {
    "user": {"tokens": TOKEN},
    "app": {"installations": INSTALLATION},
    "installation": {"tokens": TOKEN},
    "repository": {"tokens": TOKEN},
}
