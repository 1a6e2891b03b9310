"""The words of an explanation: what a shortage of room, a deployment, a quota come to in a sentence. Nothing is looked up."""

import datetime
from collections.abc import Mapping, Sequence

from wharf.model.allocation import Allocation
from wharf.model.deployment import Deployment, DeploymentGroup, DeploymentStatus
from wharf.model.evaluation import Evaluation
from wharf.model.explanation import GroupExplanation, PlacementExplanation, Waits
from wharf.model.group import TaskGroup
from wharf.scheduling.explain import Room


def of_room(group: TaskGroup, unplaced: int, room: Room, *, quota: str, all_at_once: bool = False) -> str:
    """`quota`: the one that is used up, if one is: then it is in vain that nodes have room. `all_at_once`: it is in vain as
    long as there is not room for all.
    """
    if room.fitting and quota:
        return f'{group.name} lacks {allocations(unplaced)}: nodes have room, and the quota "{quota}" has none'
    if room.fitting and all_at_once:
        return (
            f"{group.name} lacks {allocations(unplaced)}, of which none begins before there is room for all: "
            f"without AllAtOnce {room.fitting} of {room.nodes} nodes would take one now"
        )
    if room.fitting:
        return f"{group.name} lacks {allocations(unplaced)}, and room has come free for it"
    parts = [f'{each.nodes} by "{each.rule}"' for each in room.excluded]
    parts += [f"{each.nodes} have too {short_of(each.dimension)}" for each in room.exhausted if each.unit]
    parts += [f"{each.nodes}: {each.dimension}" for each in room.exhausted if not each.unit]
    why = f" ({', '.join(parts)})" if parts else ""
    help_ = f"; {room.smallest_change}" if room.smallest_change else ""
    return f"{group.name} lacks {allocations(unplaced)}: {_no_node_of(room)} take one{why}{help_}"


def short_of(dimension: str) -> str:
    """As behind "too": cores are counted, the others are amounts."""
    return f"few {dimension}" if dimension == "cores" else f"little {dimension}"


def _no_node_of(room: Room) -> str:
    if not room.nodes:
        return "no node can"
    other = "other " if room.served else ""
    if room.nodes == 1:
        return f"the {other or 'only '}node cannot"
    return f"none of {'the ' if other else ''}{other}{room.nodes} nodes can"


def of_groups(lacking: Sequence[GroupExplanation]) -> str:
    """What one group lacks, in full; of several each tells it itself. Empty where none lacks anything."""
    if len(lacking) < 2:
        return lacking[0].text if lacking else ""
    *names, last = [each.group for each in lacking]
    return f"its groups {', '.join(names)} and {last} lack {allocations(sum(each.unplaced for each in lacking))}"


def of_deployment(deployment: Deployment) -> tuple[Waits, str] | None:
    version = f"the deployment of version {deployment.job_version}"
    match deployment.status:
        case DeploymentStatus.PAUSED:
            return Waits.RESUMPTION, f"waits until {version} is resumed"
        case DeploymentStatus.FAILED:
            return Waits.CHANGE, f"goes no further: {version} failed ({deployment.status_description})"
        case DeploymentStatus.RUNNING:
            return of_running(deployment, version)
    return None


def of_running(deployment: Deployment, version: str) -> tuple[Waits, str] | None:
    groups = deployment.task_groups or {}
    unpromoted = {name: each for name, each in groups.items() if each.awaits_promotion}
    if unpromoted and all(each.healthy_allocs >= each.desired_canaries for each in unpromoted.values()):
        return (
            Waits.PROMOTION,
            f"waits until {version} is promoted: the canaries of {', '.join(unpromoted)} are healthy",
        )
    late = [each for each in groups.items() if each[1].healthy_allocs < awaited(each[1])]
    if not late:
        return None
    words = ", ".join(f"{each.healthy_allocs} of {awaited(each)} of {name}" for name, each in late)
    deadlines = [each.require_progress_by for _, each in late if each.require_progress_by is not None]
    until = f", until {say_time(min(deadlines))} at the latest" if deadlines else ""
    return Waits.HEALTH, f"waits for the health of {version}: {words} are healthy{until}"


def say_time(time: datetime.datetime) -> str:
    """As `2026-11-21 12:45:03Z`."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def in_a_few(reasons: Mapping[str, str]) -> str:
    """The first of what is told by name; the others are as a rule the same."""
    name, why = next(iter(sorted(reasons.items())))
    return f"{name}, {why}" + (f"; and {len(reasons) - 1} more" if len(reasons) > 1 else "")


def awaited(group: DeploymentGroup) -> int:
    return group.desired_canaries if group.awaits_promotion else group.desired_total


def is_for_later(evaluation: Evaluation) -> bool:
    return evaluation.wait_until is not None or evaluation.wait > 0


def quota_words(evaluation: Evaluation) -> str:
    said = [
        f"{name}: {', '.join(metric.quota_exhausted)}"
        for name, metric in (evaluation.failed_tg_allocs or {}).items()
        if metric.quota_exhausted
    ]
    return "; ".join(said) or "it is used up"


def allocations(number: int) -> str:
    return "1 allocation" if number == 1 else f"{number} allocations"


def placement(allocation: Allocation) -> PlacementExplanation:
    metric = allocation.metrics
    return PlacementExplanation(
        alloc_id=allocation.id,
        name=allocation.name,
        node_id=allocation.node_id,
        node_name=allocation.node_name,
        nodes_evaluated=metric.nodes_evaluated if metric is not None else 0,
        nodes_filtered=metric.nodes_filtered if metric is not None else 0,
        scores=(metric.score_meta_data or ()) if metric is not None else (),
    )
