"""Every table and key of the settings file of the limiter: its kind, description and default."""

from typing import Final

from wharf.limits.config.credential_settings import CredentialMode, QuestionKind
from wharf.limits.config.settings import StoreKind
from wharf.limits.core.callers.carriers import BasicForm
from wharf.limits.rules.schema import NO_DEFAULT, REQUIRED, KeySchema, TableSchema
from wharf.limits.rules.values import (
    DURATION,
    FLAG,
    NAME,
    TEXT,
    TEXTS,
    make_choice_kind,
    make_choices_kind,
    make_duration_kind,
    make_integer_kind,
)
from wharf.limits.stores.redis.settings import RedisKind
from wharf.sinks.settings import HttpFormat, SinkKind

TIMEOUT_MS: Final = make_integer_kind(1, 60_000)

ROOT: Final = TableSchema(
    "",
    "Keys outside of any table. Relative paths start from the folder of the file.",
    (
        KeySchema(
            "rules",
            TEXT,
            "The rules file. It is reloaded when it changes; an invalid file changes nothing.",
            "the profile without changes",
        ),
        KeySchema("profile", TEXT, "The built-in rules, if there is no rules file.", "`code-host`"),
        KeySchema(
            "directory",
            TEXT,
            "The directory file with accounts and token hashes. It is reloaded when it changes.",
            "no accounts",
        ),
        KeySchema("data_folder", TEXT, "The folder of counters, grants and the decision log.", "`.wharf/limits`"),
        KeySchema(
            "admin_socket", TEXT, "The Unix socket for commands of operators.", "`admin.sock` in the data folder"
        ),
        KeySchema(
            "admin_listen",
            TEXT,
            "A TCP address for commands of operators, such as `127.0.0.1:port`. It must be on this machine.",
            NO_DEFAULT,
        ),
        KeySchema(
            "admin_token_file",
            TEXT,
            "A file with the token for `admin_listen`, at least 20 characters. Only its owner may have access to it.",
            "needed with `admin_listen`",
        ),
        KeySchema(
            "credentials",
            make_choice_kind(CredentialMode),
            "What happens to a credential that is not in the directory: `listed` answers 401; `opaque` passes it on and counts "
            "it by itself once the service has accepted it; `resolved` asks who owns it.",
            '`"listed"`',
        ),
        KeySchema(
            "credential_key_file",
            TEXT,
            "The secret key of the hashes of credentials, at least 32 bytes. Only its owner may have access to it. Processes "
            "that share counters need the same key.",
            "`credential.key` in the data folder, which the limiter creates",
        ),
        KeySchema(
            "insights",
            FLAG,
            "Whether the limiter serves `GET /orgs/{org}/insights/api/…` for owners of the organization.",
            "`false`",
        ),
        KeySchema(
            "owner_paths",
            TEXTS,
            "Patterns of the complete paths that name the owner of a resource, such as `* /teams/{owner}/{repository}/*`. They "
            "replace the `owner_paths` of the rules.",
            "those of the rules",
        ),
        KeySchema("request_id_header", TEXT, "The reply header with the request id.", "`x-github-request-id`"),
    ),
)

ADDRESSES: Final = TableSchema(
    "addresses",
    "How the address of a caller is found. Set `trusted` or `hops`, never both. Without them it is the address of the "
    "socket.",
    (
        KeySchema("trusted", TEXTS, "The networks of the proxies in front of this service.", NO_DEFAULT),
        KeySchema("hops", make_integer_kind(0, 32), "The number of proxies in front of this service.", "`0`"),
        KeySchema("forwarded", FLAG, "Whether `Forwarded` is read instead of `X-Forwarded-For`.", "`false`"),
    ),
)

CARRIERS: Final = TableSchema(
    "carriers",
    'The parts of a request, besides `Authorization`, that carry credentials. Not with `credentials = "listed"`.',
    (
        KeySchema("headers", TEXTS, "Headers whose value is a token, such as `PRIVATE-TOKEN`.", NO_DEFAULT),
        KeySchema(
            "cookies",
            TEXTS,
            "Session cookies. They need `resolved`, or `sessions_accepted_on` in `[opaque]`, because services answer unknown "
            "sessions as visitors without one.",
            NO_DEFAULT,
        ),
        KeySchema("query", TEXTS, "Query parameters, such as `private_token`.", NO_DEFAULT),
        KeySchema(
            "basic",
            make_choices_kind(BasicForm),
            "What Basic authentication carries: a token of 20 characters or more as the password, a token as the user name, "
            "or a user name and a password.",
            "all three",
        ),
    ),
)

OPAQUE: Final = TableSchema(
    "opaque",
    "How credentials count whose owner is not known: by address until the service has accepted them, then each by itself.",
    (
        KeySchema(
            "accepted_on",
            TEXTS,
            "Patterns of method and path, as for a rule: below the base path of the API, or with `outside:`. Only replies to these "
            "requests prove a credential that is not a session cookie. Name paths where the service rejects an invalid credential, if it ignores one elsewhere.",
            "every request",
        ),
        KeySchema(
            "sessions_accepted_on",
            TEXTS,
            "The same for session cookies. Name paths that the service answers with 2xx only to users who have signed in.",
            NO_DEFAULT,
        ),
        KeySchema(
            "accepted_for",
            DURATION,
            "How long a credential is accepted after the service has accepted it last.",
            "`24h`",
        ),
        KeySchema(
            "accepted_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of accepted credentials in memory. Each takes about 200 bytes.",
            "`100000`",
        ),
        KeySchema(
            "new_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of new credentials of an address in an hour. Others count by address.",
            "`60`",
        ),
    ),
)

CLAIM_KEYS: Final = (
    KeySchema(
        "user", TEXT, "The member with the login of the user, such as `login` or `user.name`.", "depends on `kind`"
    ),
    KeySchema("user_id", TEXT, "The member with the number of the user, for messages.", "depends on `kind`"),
    KeySchema("app", TEXT, "The member with the id of the app.", "depends on `kind`"),
    KeySchema("organization", TEXT, "The member with the login of the organization.", "depends on `kind`"),
    KeySchema("scopes", TEXT, "The member with the scopes, as a text or a list.", "depends on `kind`"),
)

RESOLVER: Final = TableSchema(
    "resolver",
    'Who is asked for the owner of a credential, with `credentials = "resolved"`.',
    (
        KeySchema(
            "kind",
            make_choice_kind(QuestionKind),
            "`host` sends the credential to the service, `hook` to a program of yours, `introspection` to an authorization "
            "server (RFC 7662).",
            '`"host"`',
        ),
        KeySchema("url", TEXT, "The URL of the question. For `host` it can be a path.", "`/api/v1/user` for `host`"),
        *CLAIM_KEYS,
        KeySchema("client_id", TEXT, "The client id of the limiter, for `introspection`.", NO_DEFAULT),
        KeySchema(
            "secret_file",
            TEXT,
            "A file with the client secret for `introspection`, or the bearer token for `hook`. Only its owner may have access "
            "to it.",
            NO_DEFAULT,
        ),
        KeySchema(
            "ca_file", TEXT, "The CA certificate of the URL.", "`upstream_ca_file` for `host`, else the system's"
        ),
        KeySchema(
            "timeout",
            make_duration_kind(1, 30_000),
            "How long a request waits for an answer. Without one, the credential is treated as `opaque`.",
            "`2s`",
        ),
        KeySchema("lifetime", DURATION, "How long an answer with an owner is valid.", "`5m`"),
        KeySchema("unknown_lifetime", DURATION, "How long the answer is valid that nobody owns a credential.", "`1m`"),
        KeySchema(
            "accept_unknown",
            FLAG,
            "Whether a credential that nobody owns counts by itself once the service has accepted it, such as a token of a "
            "container registry. Otherwise it counts by address.",
            "`false`",
        ),
        KeySchema(
            "answers_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of answers in memory. Each takes about 500 bytes.",
            "`100000`",
        ),
        KeySchema(
            "questions_most", make_integer_kind(1, 1_000), "The maximum number of questions at the same time.", "`32`"
        ),
    ),
)

TOKENS: Final = TableSchema(
    "jwt",
    'JSON Web Tokens that the limiter verifies itself. Not with `credentials = "listed"`.',
    (
        KeySchema("issuer", TEXT, "The issuer, as the claim `iss` of the tokens names it.", "needed"),
        KeySchema("keys_url", TEXT, "The URL of the issuer's public keys (JWKS).", "needed, or `keys_file`"),
        KeySchema("keys_file", TEXT, "A file with the issuer's public keys (JWKS).", NO_DEFAULT),
        KeySchema("audience", TEXT, "The audience that the claim `aud` must contain.", "any"),
        KeySchema("algorithms", TEXTS, "The algorithms of signatures that are accepted.", "`RS256` and `ES256`"),
        KeySchema("user", TEXT, "The claim with the login of the user.", "`sub`"),
        KeySchema("user_id", TEXT, "The claim with the number of the user.", NO_DEFAULT),
        KeySchema("app", TEXT, "The claim with the id of the app.", "`client_id`"),
        KeySchema("organization", TEXT, "The claim with the login of the organization.", NO_DEFAULT),
        KeySchema("scopes", TEXT, "The claim with the scopes.", "`scope`"),
        KeySchema(
            "leeway", make_duration_kind(1, 600_000), "How much the clocks of issuer and limiter may differ.", "`1m`"
        ),
        KeySchema("refresh", DURATION, "How old the keys of the issuer may be.", "`1h`"),
        KeySchema("ca_file", TEXT, "The CA certificate of `keys_url`.", "the system's"),
    ),
)

REVOCATION: Final = TableSchema(
    "revocation",
    "A path at which other programs revoke credentials, with a POST request.",
    (
        KeySchema("path", TEXT, "The path, such as `/-/revoked-credentials`.", "none"),
        KeySchema(
            "secret_file",
            TEXT,
            "A file with the bearer token of these requests, at least 20 characters. Only its owner may have access to it.",
            "needed with `path`",
        ),
    ),
)

STORE: Final = TableSchema(
    "store",
    "Where counters are stored.",
    (
        KeySchema(
            "kind",
            make_choice_kind(StoreKind),
            "`memory` for one process, `neighbour` for other processes of its machine, `redis` for several machines.",
            '`"memory"`',
        ),
        KeySchema(
            "socket",
            TEXT,
            "The Unix socket of the process with `memory`, to which those with `neighbour` connect. Only its owner may.",
            NO_DEFAULT,
        ),
        KeySchema("saved", FLAG, "Whether counters in memory are saved over restarts.", "`true`"),
        KeySchema(
            "addresses",
            TEXTS,
            "The addresses of Redis, `host:port`; several for sentinels or a cluster.",
            "`127.0.0.1:6379`",
        ),
        KeySchema("topology", make_choice_kind(RedisKind), "How Redis is deployed.", '`"single"`'),
        KeySchema("service", TEXT, "The name of the master at the sentinels.", "`wharf`"),
        KeySchema("database", make_integer_kind(0, 1_000), "The number of the database.", "`0`"),
        KeySchema("user", TEXT, "The user name for Redis.", NO_DEFAULT),
        KeySchema("password_file", TEXT, "A file that contains only the password.", NO_DEFAULT),
        KeySchema("tls", FLAG, "Whether connections to Redis use TLS.", "`false`"),
        KeySchema("ca_file", TEXT, "The CA certificate of Redis.", "the system's"),
        KeySchema("certificate_file", TEXT, "The client certificate.", NO_DEFAULT),
        KeySchema("key_file", TEXT, "The key of the client certificate.", NO_DEFAULT),
        KeySchema("prefix", TEXT, "The start of every key.", "`wharf:limits:`"),
        KeySchema(
            "wait_replicas", make_integer_kind(0, 16), "Replicas that should confirm a charge before the reply.", "`0`"
        ),
        KeySchema(
            "wait_ms", TIMEOUT_MS, "The longest time, in milliseconds, that the store may take for a reply.", "`50`"
        ),
        KeySchema(
            "losses_most",
            make_integer_kind(1, 1_000),
            "Consecutive calls without a reply in time after which the store counts as unavailable.",
            "`3`",
        ),
        KeySchema(
            "fallback_processes",
            make_integer_kind(1, 10_000),
            "The number of processes that share a limit while the store is unavailable, for rules with "
            '`on_store_loss = "local"`.',
            "`8`",
        ),
        KeySchema(
            "leases",
            FLAG,
            "Whether processes take parts of a limit in advance, to decide without calling the store.",
            "`false`",
        ),
        KeySchema("lease_size", make_integer_kind(1, 10_000), "The part that a process takes at a time.", "`50`"),
        KeySchema(
            "lease_processes", make_integer_kind(1, 10_000), "The number of processes that share the store.", "`8`"
        ),
    ),
)

GATEWAY: Final = TableSchema(
    "gateway",
    "The reverse proxy, `wharf gateway`.",
    (
        KeySchema(
            "upstream",
            TEXT,
            "The service behind the gateway, `http://host:port` or `https://…`.",
            "the value of `--upstream`",
        ),
        KeySchema("listen", TEXT, "The address to listen on, `host:port`.", "`127.0.0.1:8080`"),
        KeySchema(
            "metrics_listen",
            TEXT,
            "The address of `GET /metrics`, `host:port`, without limits and without authentication.",
            NO_DEFAULT,
        ),
        KeySchema(
            "certificate_file",
            TEXT,
            "The certificate of the gateway. With `key_file`, it listens with TLS.",
            NO_DEFAULT,
        ),
        KeySchema("key_file", TEXT, "The key of the certificate.", NO_DEFAULT),
        KeySchema("upstream_ca_file", TEXT, "The CA certificate of the service.", "the system's"),
        KeySchema("connect_timeout", DURATION, "The timeout for connecting to the service.", "`5s`"),
        KeySchema(
            "upstream_timeout",
            DURATION,
            "The longest time without a head or bytes of the body from the service during a reply.",
            "`60s`",
        ),
        KeySchema("head_timeout", DURATION, "The timeout for receiving the head of a request.", "`10s`"),
        KeySchema(
            "idle_timeout",
            DURATION,
            "The timeout of a connection without a request, and of a pause in a body.",
            "`75s`",
        ),
        KeySchema("drain_timeout", DURATION, "How long running requests may continue when the gateway stops.", "`10s`"),
        KeySchema(
            "head_bytes_most",
            make_integer_kind(1_024, 1 << 20),
            "The maximum size of a request head, in bytes.",
            "`65536`",
        ),
        KeySchema(
            "headers_most", make_integer_kind(10, 10_000), "The maximum number of headers of a request.", "`100`"
        ),
        KeySchema(
            "connections_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of connections from callers. Beyond it, the one that is idle for the longest time is closed.",
            "`20000`",
        ),
        KeySchema(
            "connections_per_address",
            make_integer_kind(0, 1_000_000),
            "The maximum number of connections from one address, or from one /64 network of IPv6. Further ones are refused "
            "with 429. Proxies that `[addresses]` names have no maximum. 0 for no maximum.",
            "`1000`",
        ),
        KeySchema(
            "upstream_connections_most",
            make_integer_kind(1, 100_000),
            "The maximum number of connections to the service.",
            "`1000`",
        ),
        KeySchema(
            "body_rate_least",
            make_integer_kind(0, 1_000_000),
            "The slowest permitted body of a request in bytes per second, after its first `idle_timeout`. 0 for no minimum.",
            "`100`",
        ),
        KeySchema(
            "trust_marks",
            FLAG,
            "Whether the headers `x-wharf-cpu-ms` and `x-wharf-content` of the service are used. They are never forwarded.",
            "`true`",
        ),
    ),
)

SERVE: Final = TableSchema(
    "serve",
    "Answers to proxies that forward requests themselves, `wharf limits serve`.",
    (
        KeySchema(
            "grpc_listen", TEXT, "The address for Envoy's rate limit protocol (gRPC), `host:port`.", "no such server"
        ),
        KeySchema(
            "check_listen",
            TEXT,
            "The address of the check endpoint for nginx, Traefik and Caddy (HTTP), `host:port`. One that other machines "
            "can reach needs `check_secret_file`.",
            "no such server",
        ),
        KeySchema(
            "check_secret_file",
            TEXT,
            "A file with the secret that proxies must send in the header `X-Check-Secret`, at least 20 characters. Only its "
            "owner may have access to it.",
            "no secret, on an address of this machine",
        ),
        KeySchema(
            "metrics_listen",
            TEXT,
            "The address of `GET /metrics`, `host:port`, without limits and without authentication.",
            NO_DEFAULT,
        ),
        KeySchema(
            "certificate_file",
            TEXT,
            "The certificate of the gRPC server. With `key_file`, it listens with TLS.",
            NO_DEFAULT,
        ),
        KeySchema("key_file", TEXT, "The key of the certificate.", NO_DEFAULT),
        KeySchema(
            "client_ca_file",
            TEXT,
            "The CA certificate of proxies. With it, the gRPC server accepts only proxies that present a certificate of this CA.",
            NO_DEFAULT,
        ),
        KeySchema(
            "connections_most",
            make_integer_kind(1, 100_000),
            "The maximum number of connections to each of the two servers.",
            "`1000`",
        ),
        KeySchema(
            "streams_most",
            make_integer_kind(1, 100_000),
            "The maximum number of calls at a time on one gRPC connection; the proxy waits with more.",
            "`1000`",
        ),
        KeySchema(
            "calls_most",
            make_integer_kind(1, 1_000_000),
            "The maximum number of calls at a time on all gRPC connections; more are refused with RESOURCE_EXHAUSTED.",
            "`2000`",
        ),
        KeySchema(
            "message_bytes_most",
            make_integer_kind(1_024, 16 << 20),
            "The maximum size of a gRPC message in bytes. Make it larger than the headers that your proxy accepts: callers "
            "could otherwise avoid limits with long headers.",
            "`1048576`",
        ),
        KeySchema(
            "head_timeout",
            DURATION,
            "The timeout for receiving a request to the check endpoint, and for the handshake of a gRPC connection.",
            "`5s`",
        ),
        KeySchema(
            "idle_timeout",
            DURATION,
            "The timeout of a connection to the check endpoint without a request, and the interval of pings on gRPC connections.",
            "`5m`",
        ),
        KeySchema("drain_timeout", DURATION, "How long running calls may continue when the process stops.", "`5s`"),
    ),
)

DECISIONS: Final = TableSchema(
    "decisions",
    "The decision log, which `wharf limits explain` reads.",
    (
        KeySchema("kept", FLAG, "Whether the log is written to the data folder.", "`true`"),
        KeySchema(
            "one_in",
            make_integer_kind(1, 1_000_000),
            "Log one in this many admitted requests. All refusals are logged, also those that shadow mode prevents.",
            "`100`",
        ),
        KeySchema("megabytes_most", make_integer_kind(1, 1_000_000), "The maximum size of the log.", "`100`"),
        KeySchema("keep", DURATION, "How long entries are retained.", "`24h`"),
        KeySchema(
            "shared_most",
            make_integer_kind(0, 10_000_000),
            "The maximum number of decisions on Redis, where all processes can read them. Each takes up to 2 kB.",
            "`20000`",
        ),
        KeySchema("cut_addresses", FLAG, "Whether addresses are shortened to their network.", "`false`"),
    ),
)

WEBHOOK: Final = TableSchema(
    "webhook",
    "Reports that a caller has used 80 and 95 per cent of a primary limit, once in each window.",
    (KeySchema("url", TEXT, 'The URL that receives a POST with JSON, `{"alerts": [...]}`.', "no reports"),),
)

SINK: Final = TableSchema(
    "sink",
    "Where records of decisions and of changes by operators are sent. The page [Streams of records](streams.md) describes "
    "records and kinds of sinks.",
    (
        KeySchema("name", NAME, "The name, for metrics, log lines and the file of the spool.", REQUIRED),
        KeySchema("kind", make_choice_kind(SinkKind), "What receives the records.", REQUIRED),
        KeySchema(
            "types", TEXTS, "The types of its records: `limits.decision`, `limits.audit`, `sink.loss`.", "all types"
        ),
        KeySchema("path", TEXT, "For `file`: the file.", "needed for `file`"),
        KeySchema(
            "rotate_megabytes",
            make_integer_kind(0, 1_000_000),
            "For `file`: the size of a full file. 0: none.",
            "`100`",
        ),
        KeySchema("rotate_every", DURATION, "For `file`: the time that a file covers.", "`24h`"),
        KeySchema(
            "rotate_files", make_integer_kind(0, 100_000), "For `file`: how many full files stay. 0: all.", "`10`"
        ),
        KeySchema(
            "url",
            TEXT,
            "For `http`, `otlp` and `s3`: `https://…`; for `syslog`: `udp://host:514`, `tcp://host:514`, `tls://host:6514` or "
            "`unix:///dev/log`.",
            "needed, except for `file`",
        ),
        KeySchema("facility", make_integer_kind(0, 23), "For `syslog`: the number of the facility.", "`16` (local0)"),
        KeySchema("format", make_choice_kind(HttpFormat), "For `http`: the form of a request's body.", '`"lines"`'),
        KeySchema("compress", FLAG, "For `http` and `otlp`: whether bodies are compressed with gzip.", "`false`"),
        KeySchema(
            "secret_file",
            TEXT,
            "For `http` and `otlp`: a file with the value of the header `secret_header`, such as `Bearer …`. For `s3`: a file "
            "with the access key and the secret key, in one line each. Only its owner may have access to it.",
            NO_DEFAULT,
        ),
        KeySchema("secret_header", TEXT, "The header of the secret.", "`authorization`"),
        KeySchema("ca_file", TEXT, "The CA certificate of the receiver.", "the system's"),
        KeySchema("timeout", make_integer_kind(1, 300), "How many seconds an attempt may take.", "`10`"),
        KeySchema(
            "spool_megabytes_most",
            make_integer_kind(1, 100_000),
            "The maximum size of records that wait for the receiver. More are dropped and counted.",
            "`64`",
        ),
        KeySchema("bucket", TEXT, "For `s3`: the bucket.", "needed for `s3`"),
        KeySchema("prefix", TEXT, "For `s3`: the start of the names of objects.", NO_DEFAULT),
        KeySchema("region", TEXT, "For `s3`: the region.", "`us-east-1`"),
    ),
    is_list=True,
)

META: Final = "meta"
TABLES: Final = (
    ROOT, ADDRESSES, CARRIERS, OPAQUE, RESOLVER, TOKENS, REVOCATION, STORE, GATEWAY, SERVE, DECISIONS, WEBHOOK, SINK,
)  # fmt: skip
