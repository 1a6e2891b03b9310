"""Every table and key of the file that sets up a limiter: its kind, what it is for, and its default."""

from typing import Final

from wharf.limits.config.settings import StoreKind
from wharf.limits.rules.schema import NO_DEFAULT, KeySchema, TableSchema
from wharf.limits.rules.values import DURATION, FLAG, TEXT, TEXTS, make_choice_kind, make_integer_kind
from wharf.limits.stores.redis.settings import RedisKind

TIMEOUT_MS: Final = make_integer_kind(1, 60_000)

ROOT: Final = TableSchema(
    "",
    "Keys outside of any table. Paths are read from the folder of the file.",
    (
        KeySchema(
            "rules", TEXT, "The rules file. It is watched, and taken whole or not at all.", "the profile as it is"
        ),
        KeySchema("profile", TEXT, "Built-in rules, where there is no rules file.", "`code-host`"),
        KeySchema("directory", TEXT, "The directory file: who has which credential. It is watched too.", "nobody"),
        KeySchema("data_folder", TEXT, "Where counters, grants and the decision log are kept.", "`.wharf/limits`"),
        KeySchema("admin_socket", TEXT, "The Unix socket for operators' commands.", "`admin.sock` in the data folder"),
        KeySchema(
            "admin_listen",
            TEXT,
            "Where operators' commands may connect over TCP too, as `127.0.0.1:port`: on this machine only.",
            NO_DEFAULT,
        ),
        KeySchema(
            "admin_token_file",
            TEXT,
            "A file, for its owner only, that holds what they must show there: at least 20 signs.",
            "needed with `admin_listen`",
        ),
        KeySchema(
            "insights",
            FLAG,
            "Whether `GET /orgs/{org}/insights/api/…` is answered here, for owners of the organization.",
            "`false`",
        ),
        KeySchema("request_id_header", TEXT, "The header that tells a request's id.", "`x-github-request-id`"),
    ),
)

ADDRESSES: Final = TableSchema(
    "addresses",
    "Whose address a request comes from. Give `trusted` or `hops`, never both; without them it is the socket's.",
    (
        KeySchema("trusted", TEXTS, "Networks of the proxies in front of this one.", NO_DEFAULT),
        KeySchema("hops", make_integer_kind(0, 32), "How many proxies are in front of this one.", "`0`"),
        KeySchema("forwarded", FLAG, "Whether `Forwarded` is read in place of `X-Forwarded-For`.", "`false`"),
    ),
)

STORE: Final = TableSchema(
    "store",
    "Where counters are kept.",
    (
        KeySchema(
            "kind",
            make_choice_kind(StoreKind),
            "`memory` for one process, `neighbour` for others of the same machine that ask it, `redis` for many machines.",
            '`"memory"`',
        ),
        KeySchema(
            "socket",
            TEXT,
            "The Unix socket at which the process with `memory` counts for those with `neighbour`. Only its owner may connect.",
            NO_DEFAULT,
        ),
        KeySchema("saved", FLAG, "Whether counters in memory are kept over restarts.", "`true`"),
        KeySchema("addresses", TEXTS, "Of Redis: `host:port`, several for sentinels or a cluster.", "`127.0.0.1:6379`"),
        KeySchema("topology", make_choice_kind(RedisKind), "How Redis is arranged.", '`"single"`'),
        KeySchema("service", TEXT, "The name under which sentinels know the master.", "`wharf`"),
        KeySchema("database", make_integer_kind(0, 1_000), "The database's number.", "`0`"),
        KeySchema("user", TEXT, "Who we are to Redis.", NO_DEFAULT),
        KeySchema("password_file", TEXT, "A file that holds the password and nothing else.", NO_DEFAULT),
        KeySchema("tls", FLAG, "Whether Redis is reached over TLS.", "`false`"),
        KeySchema("ca_file", TEXT, "The authority of its certificate.", "the system's"),
        KeySchema("certificate_file", TEXT, "Our certificate.", NO_DEFAULT),
        KeySchema("key_file", TEXT, "Its key.", NO_DEFAULT),
        KeySchema("prefix", TEXT, "Stands before every key.", "`wharf:limits:`"),
        KeySchema(
            "wait_replicas", make_integer_kind(0, 16), "Copies that must have a charge before it is answered.", "`0`"
        ),
        KeySchema("wait_ms", TIMEOUT_MS, "No request waits for the store longer than this.", "`50`"),
        KeySchema(
            "losses_most", make_integer_kind(1, 1_000), "So many losses running, and the store is held for away.", "`3`"
        ),
        KeySchema(
            "fallback_processes",
            make_integer_kind(1, 10_000),
            "Among how many processes a limit is shared while the store is away, for rules with "
            '`on_store_loss = "local"`.',
            "`8`",
        ),
        KeySchema(
            "leases",
            FLAG,
            "Whether processes take quota in parts and decide by themselves until it is used.",
            "`false`",
        ),
        KeySchema("lease_size", make_integer_kind(1, 10_000), "How much a process takes at a time.", "`50`"),
        KeySchema("lease_processes", make_integer_kind(1, 10_000), "How many processes share the store.", "`8`"),
    ),
)

GATEWAY: Final = TableSchema(
    "gateway",
    "The reverse proxy, `wharf gateway`.",
    (
        KeySchema(
            "upstream", TEXT, "The service behind it, `http://host:port` or `https://…`.", "as `--upstream` says"
        ),
        KeySchema("listen", TEXT, "Where it listens, as `host:port`.", "`127.0.0.1:8080`"),
        KeySchema(
            "metrics_listen",
            TEXT,
            "Where `GET /metrics` is answered, as `host:port`: without limits or a password.",
            NO_DEFAULT,
        ),
        KeySchema("certificate_file", TEXT, "With `key_file`, it listens with TLS.", NO_DEFAULT),
        KeySchema("key_file", TEXT, "The certificate's key.", NO_DEFAULT),
        KeySchema("upstream_ca_file", TEXT, "The authority of the service's certificate.", "the system's"),
        KeySchema("connect_timeout", DURATION, "How long connecting to the service may take.", "`5s`"),
        KeySchema("upstream_timeout", DURATION, "How long the service may be silent while it owes a reply.", "`60s`"),
        KeySchema("head_timeout", DURATION, "How long the head of a request may take to arrive.", "`10s`"),
        KeySchema(
            "idle_timeout",
            DURATION,
            "How long a connection without a request is kept; a body may pause so long.",
            "`75s`",
        ),
        KeySchema("drain_timeout", DURATION, "How long running requests have when the gateway ends.", "`10s`"),
        KeySchema("head_bytes_most", make_integer_kind(1_024, 1 << 20), "How long a head may be.", "`65536`"),
        KeySchema("headers_most", make_integer_kind(10, 10_000), "How many headers a request may have.", "`100`"),
        KeySchema("connections_most", make_integer_kind(1, 1_000_000), "How many callers may be connected.", "`20000`"),
        KeySchema(
            "upstream_connections_most",
            make_integer_kind(1, 100_000),
            "How many connections the service is asked over.",
            "`1000`",
        ),
        KeySchema(
            "trust_marks",
            FLAG,
            "Whether the service's `x-wharf-cpu-ms` and `x-wharf-content` are believed. They are never passed on.",
            "`true`",
        ),
    ),
)

DECISIONS: Final = TableSchema(
    "decisions",
    "The log of decisions, out of which `wharf limits why` answers.",
    (
        KeySchema("kept", FLAG, "Whether it is written to the data folder.", "`true`"),
        KeySchema(
            "one_in",
            make_integer_kind(1, 1_000_000),
            "Of admitted requests one in so many; refusals are all kept.",
            "`100`",
        ),
        KeySchema("megabytes_most", make_integer_kind(1, 1_000_000), "How large it may grow.", "`100`"),
        KeySchema("keep", DURATION, "How long entries are kept.", "`24h`"),
        KeySchema(
            "shared_most",
            make_integer_kind(0, 10_000_000),
            "How many are kept on Redis, so that every process can tell of all; one takes up to 2 kB there.",
            "`20000`",
        ),
        KeySchema("cut_addresses", FLAG, "Whether addresses are cut to their network.", "`false`"),
    ),
)

WEBHOOK: Final = TableSchema(
    "webhook",
    "Where it is told that a caller has used 80 and 95 per cent of a primary limit, once a window each.",
    (KeySchema("url", TEXT, 'It gets a POST with JSON, `{"alerts": [...]}`.', "nowhere"),),
)

META: Final = "meta"
TABLES: Final = (ROOT, ADDRESSES, STORE, GATEWAY, DECISIONS, WEBHOOK)
