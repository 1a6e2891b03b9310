"""The metrics of a limiter in the Prometheus text format. The number of labels depends on the rules, never on callers."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wharf.limits.core.decision import Verdict
from wharf.limits.gateway.gateway import Gateway
from wharf.limits.rate_limiter import RateLimiter
from wharf.limits.stores.build import RemoteLayers
from wharf.limits.stores.redis import RedisStore


class Metric(NamedTuple):
    """One line of the metrics. Names that end with `_total` are counters, others are gauges."""

    name: str
    description: str
    value: float
    labels: str = ""
    """The labels without braces, such as `rule="core",outcome="refused"`."""


def render_metrics(limiter: RateLimiter, gateway: Gateway | None, more: Iterable[Metric] = ()) -> bytes:
    """Return all metrics in the Prometheus text format, with those of further servers in `more`.

    A description and the type come before the first line of each name.
    """
    lines: list[str] = []
    described_names: set[str] = set()
    for metric in (*_list_metrics(limiter, gateway), *more):
        name = f"wharf_limits_{metric.name}"
        if name not in described_names:
            described_names.add(name)
            metric_type = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {metric.description}", f"# TYPE {name} {metric_type}"]
        labels = f"{{{metric.labels}}}" if metric.labels else ""
        lines.append(f"{name}{labels} {metric.value:g}")
    return "".join(f"{line}\n" for line in lines).encode()


def _list_metrics(limiter: RateLimiter, gateway: Gateway | None) -> Iterator[Metric]:
    """Yield all metrics; those of a remote store and of a gateway only if the process has one."""
    yield from _list_decision_metrics(limiter)
    yield from _list_service_metrics(limiter)
    if limiter.stores.remote is not None:
        yield from _list_store_metrics(limiter.stores.remote)
    if gateway is not None:
        yield from _list_gateway_metrics(gateway)


def _list_decision_metrics(limiter: RateLimiter) -> Iterator[Metric]:
    """Yield the numbers of decisions by verdict and by rule."""
    service = limiter.decision_service
    activity = service.activity
    activity.add_admissions_to_rows(service.now_ms())
    description = "Requests by decision."
    yield Metric("decisions_total", description, activity.admitted, 'verdict="admitted"')
    for verdict in Verdict:
        if verdict is not Verdict.ADMITTED:
            yield Metric("decisions_total", description, activity.verdicts[verdict], f'verdict="{verdict.value}"')
    yield Metric("unauthorized_total", "Requests with an invalid credential.", activity.unauthorized)
    for rule in service.evaluator.rules.counted_rules:
        counts = activity.rules.get(rule.name)
        if counts is not None:
            for outcome in ("within", "refused", "shadowed"):
                labels = f'rule="{rule.name}",outcome="{outcome}"'
                yield Metric(
                    "rule_requests_total", "Requests that a rule applied to.", getattr(counts, outcome), labels
                )
    yield Metric(
        "near_total", "Admitted requests that used 80 percent or more of their primary limit.", activity.near_limit
    )
    ratio = activity.near_limit / activity.admitted if activity.admitted else 0.0
    yield Metric("near_ratio", "The fraction of these among admitted requests.", ratio)


def _list_service_metrics(limiter: RateLimiter) -> Iterator[Metric]:
    """Yield the state of running requests, overrides, logs and files."""
    service = limiter.decision_service
    yield Metric("running", "Requests that are running.", len(service.running_requests))
    yield Metric(
        "revived_slots_total",
        "Concurrency slots that expired while their requests were running.",
        service.revived_leases,
    )
    yield Metric("grants", "Grants in force.", len(service.overrides.grant_file.entries))
    yield Metric("off", "1 while limits are switched off.", float(service.overrides.is_off))
    yield Metric(
        "journal_lost_total",
        "Decisions that were not logged because the queue of the decision log was full.",
        service.decision_log.dropped_decisions,
    )
    yield Metric(
        "shared_lost_total",
        "Decisions that were not written to the store for other processes.",
        service.shared_records.dropped_decisions,
    )
    yield from _list_sink_metrics(limiter)
    rejected = sum(bool(file.problem) for file in limiter.watcher.files)
    yield Metric("files_refused", "Watched files whose current content was rejected.", rejected)
    if service.unlisted is not None:
        accepted = len(service.unlisted.accepted)
        yield Metric("credentials_accepted", "Unlisted credentials that the service has accepted.", accepted)
        resolver = service.unlisted.resolver
        if resolver is not None:
            yield Metric("questions_total", "Questions for owners of credentials.", resolver.question_count)
            yield Metric(
                "questions_unanswered_total", "Questions without an answer in time.", resolver.unanswered_count
            )
    if limiter.webhook is not None:
        yield Metric("webhook_failures_total", "Requests to the webhook that failed.", limiter.webhook.failures)


def _list_sink_metrics(limiter: RateLimiter) -> Iterator[Metric]:
    """Yield the state of the sinks of records."""
    service = limiter.decision_service
    yield Metric(
        "records_dropped_total",
        "Decisions that sinks and followers did not get because too many waited.",
        service.records.dropped,
    )
    for sink in service.records.stream.describe_sinks():
        labels = f'sink="{sink.name}"'
        yield Metric("sink_waiting_records", "Records that wait for the receiver.", sink.waiting_records, labels)
        yield Metric("sink_waiting_bytes", "The size of these records.", sink.waiting_bytes, labels)
        description = "Records by outcome: sent, lost because the spool was full, or rejected by the receiver."
        for outcome in ("sent", "lost", "rejected"):
            value = getattr(sink, outcome)
            yield Metric("sink_records_total", description, value, f'{labels},outcome="{outcome}"')
        yield Metric("sink_failures_total", "Attempts to send that failed.", sink.failures, labels)


def _list_store_metrics(remote: RemoteLayers) -> Iterator[Metric]:
    """Yield the availability of a remote store."""
    counts = remote.guard.counts
    yield Metric("store_away", "1 while the store is treated as unavailable.", float(counts.is_away))
    yield Metric("store_lost_total", "Calls of the store without a reply in time.", counts.lost_calls)
    yield Metric(
        "store_queue_timeouts_total",
        "Calls that waited too long in this process, although the store replied in time.",
        counts.queue_timeouts,
    )
    yield Metric("store_decided_here_total", "Requests that were decided without the store.", counts.local_decisions)
    description = "Late replies to requests that were decided without the store, by what happened to their charges."
    yield Metric("store_late_total", description, counts.late_kept, 'outcome="kept"')
    yield Metric("store_late_total", description, counts.late_undone, 'outcome="undone"')
    yield Metric("store_late_total", description, counts.unsettled, 'outcome="unsettled"')
    if isinstance(remote.store, RedisStore):
        link = remote.store.link
        yield Metric(
            "store_restarts_total",
            "How often a restarted or another Redis was found: charges may be lost.",
            link.restarts,
        )
        yield Metric(
            "store_too_few_replicas_total",
            "Batches that fewer replicas confirmed than `wait_replicas` requires.",
            link.replica_shortages,
        )
        yield Metric(
            "rule_hashes",
            "The number of different rule sets that processes of this store use.",
            remote.store.rule_hashes,
        )


def _list_gateway_metrics(gateway: Gateway) -> Iterator[Metric]:
    """Yield the numbers of requests, replies and connections of the gateway."""
    for status_class, count in sorted(gateway.counts.replies.items()):
        yield Metric("gateway_replies_total", "Replies by class of their status.", count, f'status="{status_class}xx"')
    yield Metric("gateway_requests_total", "Requests whose head was read.", gateway.counts.requests)
    yield Metric(
        "gateway_failures_total", "Replies of the service that could not be forwarded.", gateway.counts.failures
    )
    yield Metric("gateway_connections", "Open connections of callers.", len(gateway.connections))
    description = "Connections that were closed without a request, by reason: too many in total, or of one address."
    yield Metric("gateway_turned_away_total", description, gateway.counts.rejected_connections, 'reason="total"')
    yield Metric("gateway_turned_away_total", description, gateway.counts.rejected_by_address, 'reason="address"')
