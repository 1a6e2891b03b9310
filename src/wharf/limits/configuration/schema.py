"""Every table and key of the file that sets up a limiter: its kind, what it is for, and its default."""

from typing import Final

from wharf.limits.configuration.settings import StoreKind
from wharf.limits.rules.schema import NONE, Key, Table
from wharf.limits.rules.values import DURATION, FLAG, TEXT, TEXTS, number, one_of
from wharf.limits.stores.redis.settings import RedisKind

MILLISECONDS: Final = number(1, 60_000)

TOP: Final = Table(
    "",
    "Keys outside of any table. Paths are read from the folder of the file.",
    (
        Key("rules", TEXT, "The rules file. It is watched, and taken whole or not at all.", "the profile as it is"),
        Key("profile", TEXT, "Built-in rules, where there is no rules file.", "`code-host`"),
        Key("directory", TEXT, "The directory file: who has which credential. It is watched too.", "nobody"),
        Key("data_folder", TEXT, "Where counters, grants and the decision log are kept.", "`.wharf/limits`"),
        Key("admin_socket", TEXT, "The Unix socket for operators' commands.", "`admin.sock` in the data folder"),
        Key(
            "admin_listen",
            TEXT,
            "Where operators' commands may connect over TCP too, as `127.0.0.1:port`: on this machine only.",
            NONE,
        ),
        Key(
            "admin_token_file",
            TEXT,
            "A file, for its owner only, that holds what they must show there: at least 20 signs.",
            "needed with `admin_listen`",
        ),
        Key(
            "insights",
            FLAG,
            "Whether `GET /orgs/{org}/insights/api/…` is answered here, for owners of the organization.",
            "`false`",
        ),
        Key("request_id_header", TEXT, "The header that tells a request's id.", "`x-github-request-id`"),
    ),
)

ADDRESSES: Final = Table(
    "addresses",
    "Whose address a request comes from. Give `trusted` or `hops`, never both; without them it is the socket's.",
    (
        Key("trusted", TEXTS, "Networks of the proxies in front of this one.", NONE),
        Key("hops", number(0, 32), "How many proxies are in front of this one.", "`0`"),
        Key("forwarded", FLAG, "Whether `Forwarded` is read in place of `X-Forwarded-For`.", "`false`"),
    ),
)

STORE: Final = Table(
    "store",
    "Where counters are kept.",
    (
        Key(
            "kind",
            one_of(StoreKind),
            "`memory` for one process, `neighbour` for others of the same machine that ask it, `redis` for many machines.",
            '`"memory"`',
        ),
        Key(
            "socket",
            TEXT,
            "The Unix socket at which the process with `memory` counts for those with `neighbour`. Only its owner may connect.",
            NONE,
        ),
        Key("saved", FLAG, "Whether counters in memory are kept over restarts.", "`true`"),
        Key("addresses", TEXTS, "Of Redis: `host:port`, several for sentinels or a cluster.", "`127.0.0.1:6379`"),
        Key("topology", one_of(RedisKind), "How Redis is arranged.", '`"single"`'),
        Key("service", TEXT, "The name under which sentinels know the master.", "`wharf`"),
        Key("database", number(0, 1_000), "The database's number.", "`0`"),
        Key("user", TEXT, "Who we are to Redis.", NONE),
        Key("password_file", TEXT, "A file that holds the password and nothing else.", NONE),
        Key("tls", FLAG, "Whether Redis is reached over TLS.", "`false`"),
        Key("ca_file", TEXT, "The authority of its certificate.", "the system's"),
        Key("certificate_file", TEXT, "Our certificate.", NONE),
        Key("key_file", TEXT, "Its key.", NONE),
        Key("prefix", TEXT, "Stands before every key.", "`wharf:limits:`"),
        Key("wait_replicas", number(0, 16), "Copies that must have a charge before it is answered.", "`0`"),
        Key("wait_ms", MILLISECONDS, "No request waits for the store longer than this.", "`50`"),
        Key("losses_most", number(1, 1_000), "So many losses running, and the store is held for away.", "`3`"),
        Key(
            "fallback_processes",
            number(1, 10_000),
            "Among how many processes a limit is shared while the store is away, for rules with "
            '`on_store_loss = "local"`.',
            "`8`",
        ),
        Key(
            "leases",
            FLAG,
            "Whether processes take quota in parts and decide by themselves until it is used.",
            "`false`",
        ),
        Key("lease_size", number(1, 10_000), "How much a process takes at a time.", "`50`"),
        Key("lease_processes", number(1, 10_000), "How many processes share the store.", "`8`"),
    ),
)

GATEWAY: Final = Table(
    "gateway",
    "The reverse proxy, `wharf gateway`.",
    (
        Key("upstream", TEXT, "The service behind it, `http://host:port` or `https://…`.", "as `--upstream` says"),
        Key("listen", TEXT, "Where it listens, as `host:port`.", "`127.0.0.1:8080`"),
        Key(
            "metrics_listen",
            TEXT,
            "Where `GET /metrics` is answered, as `host:port`: without limits or a password.",
            NONE,
        ),
        Key("certificate_file", TEXT, "With `key_file`, it listens with TLS.", NONE),
        Key("key_file", TEXT, "The certificate's key.", NONE),
        Key("upstream_ca_file", TEXT, "The authority of the service's certificate.", "the system's"),
        Key("connect_timeout", DURATION, "How long connecting to the service may take.", "`5s`"),
        Key("upstream_timeout", DURATION, "How long the service may be silent while it owes a reply.", "`60s`"),
        Key("head_timeout", DURATION, "How long the head of a request may take to arrive.", "`10s`"),
        Key(
            "idle_timeout",
            DURATION,
            "How long a connection without a request is kept; a body may pause so long.",
            "`75s`",
        ),
        Key("drain_timeout", DURATION, "How long running requests have when the gateway ends.", "`10s`"),
        Key("head_bytes_most", number(1_024, 1 << 20), "How long a head may be.", "`65536`"),
        Key("headers_most", number(10, 10_000), "How many headers a request may have.", "`100`"),
        Key("connections_most", number(1, 1_000_000), "How many callers may be connected.", "`20000`"),
        Key(
            "upstream_connections_most", number(1, 100_000), "How many connections the service is asked over.", "`1000`"
        ),
        Key(
            "trust_marks",
            FLAG,
            "Whether the service's `x-wharf-cpu-ms` and `x-wharf-content` are believed. They are never passed on.",
            "`true`",
        ),
    ),
)

DECISIONS: Final = Table(
    "decisions",
    "The log of decisions, out of which `wharf limits why` answers.",
    (
        Key("kept", FLAG, "Whether it is written to the data folder.", "`true`"),
        Key("one_in", number(1, 1_000_000), "Of admitted requests one in so many; refusals are all kept.", "`100`"),
        Key("megabytes_most", number(1, 1_000_000), "How large it may grow.", "`100`"),
        Key("keep", DURATION, "How long entries are kept.", "`24h`"),
        Key(
            "shared_most",
            number(0, 10_000_000),
            "How many are kept on Redis, so that every process can tell of all; one takes up to 2 kB there.",
            "`20000`",
        ),
        Key("cut_addresses", FLAG, "Whether addresses are cut to their network.", "`false`"),
    ),
)

WEBHOOK: Final = Table(
    "webhook",
    "Where it is told that a caller has used 80 and 95 per cent of a primary limit, once a window each.",
    (Key("url", TEXT, 'It gets a POST with JSON, `{"alerts": [...]}`.', "nowhere"),),
)

META: Final = "meta"
TABLES: Final = (TOP, ADDRESSES, STORE, GATEWAY, DECISIONS, WEBHOOK)
