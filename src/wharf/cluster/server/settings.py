"""The settings of a server: limits, retention times, heartbeats, access control, keyring and regions."""

import enum
from typing import Annotated

import msgspec

from wharf.contract.model.operator.scheduler_configuration import (
    PreemptionConfig,
    SchedulerAlgorithm,
    SchedulerConfiguration,
)
from wharf.contract.model.settings import Duration, SecretText, SettingInfo, Size
from wharf.contract.model.times import HOUR, MINUTE, SECOND


class PlanRejectionTrackerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When to mark nodes ineligible that reject plans again and again."""

    enabled: Annotated[bool, SettingInfo("Whether a node that keeps refusing plans is made ineligible.")] = False
    node_threshold: Annotated[int, SettingInfo("How many refusals within the window it takes.", min_value=1)] = 100
    node_window: Annotated[Duration, SettingInfo("The window in which refusals are counted.")] = Duration(5 * MINUTE)


class SearchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the search endpoints."""

    fuzzy_enabled: Annotated[bool, SettingInfo("Whether fuzzy search is answered.")] = True
    limit_query: Annotated[int, SettingInfo("How many objects of each table a search looks at.", min_value=1)] = 100_000
    limit_results: Annotated[
        int, SettingInfo("How many results a context of a fuzzy search may have.", min_value=1)
    ] = 100
    min_term_length: Annotated[int, SettingInfo("The shortest text that a fuzzy search takes.", min_value=1)] = 2


class PreemptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For which job types preemption is enabled."""

    system_scheduler_enabled: Annotated[bool, SettingInfo("For system jobs.")] = True
    sysbatch_scheduler_enabled: Annotated[bool, SettingInfo("For sysbatch jobs.")] = False
    batch_scheduler_enabled: Annotated[bool, SettingInfo("For batch jobs.")] = False
    service_scheduler_enabled: Annotated[bool, SettingInfo("For service jobs.")] = False


class DefaultSchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler configuration that a new cluster starts with."""

    scheduler_algorithm: Annotated[
        SchedulerAlgorithm, SettingInfo("`binpack` fills nodes one after another, `spread` evens them out.")
    ] = SchedulerAlgorithm.BINPACK
    memory_oversubscription_enabled: Annotated[
        bool, SettingInfo("Whether `memory_max` above `memory` is honoured.")
    ] = False
    reject_job_registration: Annotated[bool, SettingInfo("Whether only management may register jobs.")] = False
    pause_eval_broker: Annotated[bool, SettingInfo("Whether scheduling begins paused.")] = False
    node_limit_for_feasibility_checks: Annotated[
        int, SettingInfo("How many nodes are looked at for spread and affinity; 0 acts as 100.", min_value=0)
    ] = 0
    preemption_config: Annotated[
        PreemptionSettings, SettingInfo("For which jobs those of lower priority may be pushed aside.")
    ] = PreemptionSettings()

    def configuration(self) -> SchedulerConfiguration:
        """Return the record that a new cluster starts with."""
        preemption = self.preemption_config
        return SchedulerConfiguration(
            # An empty algorithm means "use the cluster's", which is valid for node pools only.
            scheduler_algorithm=self.scheduler_algorithm or SchedulerAlgorithm.BINPACK,
            memory_oversubscription_enabled=self.memory_oversubscription_enabled,
            reject_job_registration=self.reject_job_registration,
            pause_eval_broker=self.pause_eval_broker,
            node_limit_for_feasibility_checks=self.node_limit_for_feasibility_checks,
            preemption_config=PreemptionConfig(
                system_scheduler_enabled=preemption.system_scheduler_enabled,
                sys_batch_scheduler_enabled=preemption.sysbatch_scheduler_enabled,
                batch_scheduler_enabled=preemption.batch_scheduler_enabled,
                service_scheduler_enabled=preemption.service_scheduler_enabled,
            ),
        )


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `server` block."""

    enabled: Annotated[bool, SettingInfo("Whether this agent is a server: HTTP, state and scheduling.")] = False
    authoritative_region: Annotated[
        str, SettingInfo("The region that tokens and policies are copied from.", default_text="the agent's own region")
    ] = ""
    enabled_schedulers: Annotated[tuple[str, ...], SettingInfo("The types of jobs that this server schedules.")] = (
        "service",
        "batch",
        "system",
        "sysbatch",
        "_core",
    )
    enable_event_broker: Annotated[bool, SettingInfo("Whether the event stream is answered.")] = True
    event_buffer_size: Annotated[int, SettingInfo("How many commits an event stream can look back.", min_value=1)] = 100
    job_max_source_size: Annotated[Size, SettingInfo("The largest source text that is kept with a job.")] = Size(
        1_000_000
    )
    job_tracked_versions: Annotated[int, SettingInfo("How many versions of a job are kept.", min_value=1)] = 6
    job_default_priority: Annotated[
        int, SettingInfo("The priority of a job that names none.", min_value=1, max_value=100)
    ] = 50
    job_max_priority: Annotated[
        int, SettingInfo("The highest priority that a job may have.", min_value=1, max_value=32_766)
    ] = 100
    job_max_count: Annotated[
        int, SettingInfo("The most allocations that all groups of a job may ask for.", min_value=1)
    ] = 50_000
    job_gc_interval: Annotated[Duration, SettingInfo("How often it is looked for what can be collected.")] = Duration(
        5 * MINUTE
    )
    job_gc_threshold: Annotated[Duration, SettingInfo("How long a dead job is kept.")] = Duration(4 * HOUR)
    eval_gc_threshold: Annotated[Duration, SettingInfo("How long an evaluation that ended is kept.")] = Duration(HOUR)
    batch_eval_gc_threshold: Annotated[Duration, SettingInfo("The same for evaluations of batch jobs.")] = Duration(
        24 * HOUR
    )
    deployment_gc_threshold: Annotated[Duration, SettingInfo("How long a deployment that ended is kept.")] = Duration(
        HOUR
    )
    node_gc_threshold: Annotated[Duration, SettingInfo("How long a node that is down and empty is kept.")] = Duration(
        24 * HOUR
    )
    acl_token_gc_threshold: Annotated[Duration, SettingInfo("How long a token that expired is kept.")] = Duration(HOUR)
    root_key_gc_interval: Annotated[Duration, SettingInfo("How often old keys of the keyring are looked for.")] = (
        Duration(10 * MINUTE)
    )
    root_key_gc_threshold: Annotated[Duration, SettingInfo("How long a key that nothing uses is kept.")] = Duration(
        HOUR
    )
    root_key_rotation_threshold: Annotated[Duration, SettingInfo("How old the active key may become.")] = Duration(
        720 * HOUR
    )
    heartbeat_grace: Annotated[Duration, SettingInfo("How much longer than its TTL a node may be silent.")] = Duration(
        10 * SECOND
    )
    min_heartbeat_ttl: Annotated[Duration, SettingInfo("The shortest time between two heartbeats of a node.")] = (
        Duration(10 * SECOND)
    )
    max_heartbeats_per_second: Annotated[
        float, SettingInfo("Heartbeats of all nodes together; with more nodes each beats more rarely.")
    ] = 50.0
    failover_heartbeat_ttl: Annotated[
        Duration, SettingInfo("How long nodes may be silent after a change of leader.")
    ] = Duration(5 * MINUTE)
    oidc_issuer: Annotated[
        str, SettingInfo("The issuer named in identities of workloads; without it discovery is off.")
    ] = ""
    plan_rejection_tracker: Annotated[
        PlanRejectionTrackerSettings, SettingInfo("Nodes that keep refusing what was planned for them.")
    ] = PlanRejectionTrackerSettings()
    search: Annotated[SearchSettings, SettingInfo("Search over all objects.")] = SearchSettings()
    default_scheduler_config: Annotated[
        DefaultSchedulerSettings, SettingInfo("The scheduler's configuration of a new cluster, until one is stored.")
    ] = DefaultSchedulerSettings()


class AclSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `acl` block."""

    enabled: Annotated[bool, SettingInfo("Whether requests need tokens.")] = False
    token_ttl: Annotated[Duration, SettingInfo("How long a node remembers a token's rights.")] = Duration(30 * SECOND)
    policy_ttl: Annotated[Duration, SettingInfo("How long a node remembers a policy.")] = Duration(30 * SECOND)
    role_ttl: Annotated[Duration, SettingInfo("How long a node remembers a role.")] = Duration(30 * SECOND)
    token_min_expiration_ttl: Annotated[Duration, SettingInfo("The shortest life that a token may be given.")] = (
        Duration(MINUTE)
    )
    token_max_expiration_ttl: Annotated[Duration, SettingInfo("The longest life that a token may be given.")] = (
        Duration(24 * HOUR)
    )
    replication_token: Annotated[
        SecretText,
        SettingInfo(
            "A management token of the authoritative region, by which policies, global tokens and all else that is "
            "global is copied from there."
        ),
    ] = SecretText()


class SigningAlgorithm(enum.StrEnum):
    """The algorithm of keys that sign identities."""

    RS256 = "RS256"
    ED25519 = "Ed25519"


class KeyringSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the `keyring` block."""

    file: Annotated[
        str,
        SettingInfo(
            "The key that wraps the keyring's keys; made, readable by its owner only, where it is missing. Several "
            "servers share one, and a snapshot is worth nothing without it.",
            default_text="`keyring.key` in the data folder",
        ),
    ] = ""
    signing_algorithm: Annotated[
        SigningAlgorithm,
        SettingInfo("By what keys that are made from now on sign identities; the older ones go on as they are."),
    ] = SigningAlgorithm.RS256


class RegionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach the servers of another region."""

    servers: Annotated[tuple[str, ...], SettingInfo("The HTTP addresses of that region's servers.")] = ()
