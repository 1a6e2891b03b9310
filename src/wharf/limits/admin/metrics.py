"""What a limiter tells a monitor: counters by rule and outcome. Labels are bounded by the rules, never by callers."""

from collections.abc import Iterator

from wharf.limits.core.decision import Verdict
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter

MetricLine = tuple[str, str, str, float]
"""Name, what it is, labels, value."""


def render_metrics(limits: RateLimiter, gateway: Gateway | None) -> bytes:
    lines: list[str] = []
    told: set[str] = set()
    for name, about, labels, value in _lines(limits, gateway):
        full = f"wharf_limits_{name}"
        if full not in told:
            told.add(full)
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
        lines.append(f"{full}{{{labels}}} {value:g}" if labels else f"{full} {value:g}")
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(limits: RateLimiter, gateway: Gateway | None) -> Iterator[MetricLine]:
    desk, tally = limits.decision_service, limits.decision_service.activity
    tally.fold_counts(desk.now_ms())
    about = "Requests by what was decided."
    yield "decisions_total", about, 'verdict="admitted"', tally.admitted
    for verdict in Verdict:
        if verdict is not Verdict.ADMITTED:
            yield "decisions_total", about, f'verdict="{verdict.value}"', tally.verdicts[verdict]
    yield "unauthorized_total", "Requests with a wrong credential.", "", tally.unauthorized
    about = "Requests that met a rule, by what it said."
    for rule in desk.evaluator.rules.rules:
        counts = tally.rules.get(rule.name)
        if counts is not None:
            for outcome in ("within", "refused", "shadowed"):
                labels = f'rule="{rule.name}",outcome="{outcome}"'
                yield "rule_requests_total", about, labels, getattr(counts, outcome)
    yield "near_total", "Admitted requests whose primary bucket is used to 80 per cent and more.", "", tally.near_limit
    ratio = tally.near_limit / tally.admitted if tally.admitted else 0.0
    yield "near_ratio", "The share of these among admitted requests.", "", ratio
    yield "running", "Requests that run now.", "", len(desk.running_requests)
    yield "revived_slots_total", "Slots that had run out while their requests went on.", "", desk.revived_leases
    yield "grants", "Grants that hold now.", "", len(desk.overrides.grant_file.grants)
    yield "off", "Whether limits are switched off.", "", float(desk.overrides.is_off)
    yield "journal_lost_total", "Decisions that the log had no room for.", "", desk.decision_log.dropped_decisions
    yield (
        "shared_lost_total",
        "Decisions that other processes cannot tell of.",
        "",
        desk.shared_records.dropped_decisions,
    )
    refused = sum(bool(file.problem) for file in limits.watcher.files)
    yield "files_refused", "Watched files that are not in force as they stand.", "", refused
    if limits.webhook is not None:
        yield "webhook_failures_total", "Messages to the webhook that were lost.", "", limits.webhook.failures
    if limits.guarded_store is not None:
        store = limits.guarded_store.counts
        yield "store_away", "Whether the store is held for away.", "", float(store.is_away)
        yield "store_lost_total", "Calls of the store without an answer in time.", "", store.lost_calls
        yield "store_decided_here_total", "Requests decided while it was away.", "", store.local_decisions
        about = "Answers that came after their requests were decided here, and what became of their charges."
        yield "store_late_total", about, 'outcome="kept"', store.late_kept
        yield "store_late_total", about, 'outcome="undone"', store.late_undone
        yield "store_late_total", about, 'outcome="unsettled"', store.unsettled
    if limits.redis_store is not None:
        link = limits.redis_store.link
        yield "store_restarts_total", "Times that another server was found: charges may be lost.", "", link.restarts
        about = "Batches that fewer copies had than `wait_replicas` says."
        yield "store_too_few_replicas_total", about, "", link.replica_shortages
        yield "rule_hashes", "How many different rules count on this store.", "", limits.redis_store.rule_hashes
    if gateway is not None:
        for kind, count in sorted(gateway.counts.replies.items()):
            yield "gateway_replies_total", "Replies by the hundred of their status.", f'status="{kind}xx"', count
        yield "gateway_requests_total", "Requests whose head was read.", "", gateway.counts.requests
        yield (
            "gateway_failures_total",
            "Replies of the service that could not be passed on.",
            "",
            gateway.counts.failures,
        )
        yield "gateway_connections", "Connections of callers.", "", len(gateway.connections)
        yield "gateway_turned_away_total", "Connections beyond the bound.", "", gateway.counts.rejected_connections
