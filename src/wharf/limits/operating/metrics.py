"""What a limiter tells a monitor: counters by rule and outcome. Labels are bounded by the rules, never by callers."""

from collections.abc import Iterator

from wharf.limits.building import Limits
from wharf.limits.core.decision import Verdict
from wharf.limits.gateway.gateway import Gateway

Line = tuple[str, str, str, float]
"""Name, what it is, labels, value."""


def metrics_text(limits: Limits, gateway: Gateway | None) -> bytes:
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


def _lines(limits: Limits, gateway: Gateway | None) -> Iterator[Line]:
    desk, tally = limits.desk, limits.desk.tally
    tally.fold(desk.now_ms())
    about = "Requests by what was decided."
    yield "decisions_total", about, 'verdict="admitted"', tally.admitted
    for verdict in Verdict:
        if verdict is not Verdict.ADMITTED:
            yield "decisions_total", about, f'verdict="{verdict.value}"', tally.verdicts[verdict]
    yield "unauthorized_total", "Requests with a wrong credential.", "", tally.unauthorized
    about = "Requests that met a rule, by what it said."
    for rule in desk.service.rules.rules:
        counts = tally.rules.get(rule.name)
        if counts is not None:
            for outcome in ("within", "refused", "shadowed"):
                labels = f'rule="{rule.name}",outcome="{outcome}"'
                yield "rule_requests_total", about, labels, getattr(counts, outcome)
    yield "near_total", "Admitted requests whose primary bucket is used to 80 per cent and more.", "", tally.near
    ratio = tally.near / tally.admitted if tally.admitted else 0.0
    yield "near_ratio", "The share of these among admitted requests.", "", ratio
    yield "running", "Requests that run now.", "", len(desk.running)
    yield "revived_slots_total", "Slots that had run out while their requests went on.", "", desk.revived
    yield "grants", "Grants that hold now.", "", len(desk.orders.grants.grants)
    yield "off", "Whether limits are switched off.", "", float(desk.orders.is_off)
    yield "journal_lost_total", "Decisions that the log had no room for.", "", desk.journal.lost
    yield "shared_lost_total", "Decisions that other processes cannot tell of.", "", desk.sharing.lost
    refused = sum(bool(file.problem) for file in limits.watcher.files)
    yield "files_refused", "Watched files that are not in force as they stand.", "", refused
    if limits.webhook is not None:
        yield "webhook_failures_total", "Messages to the webhook that were lost.", "", limits.webhook.failures
    if limits.guard is not None:
        store = limits.guard.counts
        yield "store_away", "Whether the store is held for away.", "", float(store.is_away)
        yield "store_lost_total", "Calls of the store without an answer in time.", "", store.lost
        yield "store_decided_here_total", "Requests decided while it was away.", "", store.decided_here
        about = "Answers that came after their requests were decided here, and what became of their charges."
        yield "store_late_total", about, 'outcome="kept"', store.late_kept
        yield "store_late_total", about, 'outcome="undone"', store.late_undone
        yield "store_late_total", about, 'outcome="unsettled"', store.unsettled
    if limits.far is not None:
        link = limits.far.link
        yield "store_restarts_total", "Times that another server was found: charges may be lost.", "", link.restarts
        about = "Batches that fewer copies had than `wait_replicas` says."
        yield "store_too_few_replicas_total", about, "", link.too_few_replicas
        yield "rule_hashes", "How many different rules count on this store.", "", limits.far.rule_hashes
    if gateway is not None:
        for kind, count in sorted(gateway.statuses.items()):
            yield "gateway_replies_total", "Replies by the hundred of their status.", f'status="{kind}xx"', count
        yield "gateway_requests_total", "Requests whose head was read.", "", gateway.requests
        yield "gateway_failures_total", "Replies of the service that could not be passed on.", "", gateway.failures
        yield "gateway_connections", "Connections of callers.", "", len(gateway.connections)
        yield "gateway_turned_away_total", "Connections beyond the bound.", "", gateway.turned_away
