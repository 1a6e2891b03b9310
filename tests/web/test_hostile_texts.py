"""Hostile text in every text field of the records: no page gets an element, a script or a link from it."""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser, a_server_with_access
from tests.web.strict_html import StrictHtml, find_problems
from tests.web.test_pages import a_cluster_with_work, list_addresses
from wharf.cluster.state.tables import (
    ACL_POLICIES,
    ACL_TOKENS,
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    HOST_VOLUMES,
    JOB_VERSIONS,
    JOBS,
    NAMESPACES,
    NODE_POOLS,
    NODES,
    PAGE_SESSIONS,
    QUOTAS,
    SERVICES,
)
from wharf.contract.model.acl.policies import Policy
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.volumes import HostVolume, HostVolumeState

HOSTILE: Final = "\"'><img src=x onerror=alert(1)></textarea></script><script>alert(1)</script>\u202e"
LINK: Final = "javascript:alert(1)"
TABLES: Final[tuple[Any, ...]] = (
    ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, HOST_VOLUMES, JOB_VERSIONS, JOBS, NAMESPACES, NODE_POOLS, NODES, QUOTAS, SERVICES,
)  # fmt: skip
ACCESS_TABLES: Final[tuple[Any, ...]] = (ACL_TOKENS, ACL_POLICIES, PAGE_SESSIONS)
KEPT: Final = re.compile(
    r"(.*_)?(id|ids|namespace|type|state|status|digest|pool|group|driver|region|index|quota|job|name|operand|trigger|triggered_by|"
    r"spec|specs|timezone|mode|hash|token|constraint|operator|cron|enabled|datacenters|version)"
)
"""Fields that are not free text: keys and references, and texts with a few allowed values."""


def poison(value: Any, field: str = "") -> Any:
    """Return the value with hostile text in place of each free text in it."""
    if isinstance(value, msgspec.Struct):
        changed = {
            name: poison(getattr(value, name), name)
            for name in value.__struct_fields__
            if not KEPT.fullmatch(name) or not isinstance(getattr(value, name), str)
        }
        return msgspec.structs.replace(value, **changed)
    if type(value) is str:
        return LINK if field == "url" else HOSTILE
    if type(value) in (tuple, list) and not KEPT.fullmatch(field):
        return type(value)(poison(each, field) for each in value)
    if isinstance(value, Mapping) and not KEPT.fullmatch(field):
        has_free_keys = all(isinstance(each, str | int) for each in value.values())
        return {key + HOSTILE if has_free_keys else key: poison(each, field) for key, each in value.items()}
    return value


async def poison_all(server: OneServer) -> int:
    """Put hostile text into all records, and return how many have changed."""
    count = 0
    for table in TABLES:
        for record in list(server.replica.iter_all(table)):
            poisoned = poison(record)
            if poisoned != record:
                await commit(server, table.build_put(poisoned))
                count += 1
    return count


async def add_records(server: OneServer) -> list[str]:
    """Add records that the cluster does not have yet, and return the addresses of their pages."""
    allocation = next(each for each in server.replica.iter_all(ALLOCATIONS) if each.job_id == "shop")
    service = ServiceRegistration(
        id="s1", service_name="shop-http", namespace="default", node_id=allocation.node_id, job_id="shop",
        alloc_id=allocation.id, tags=("a",), address="10.0.0.1", port=80,
    )  # fmt: skip
    volume = HostVolume(
        id="11111111-1111-1111-1111-111111111111", name="v", node_id=allocation.node_id, node_pool="default",
        host_path="/d", parameters={"key": "value"}, state=HostVolumeState.READY, create_index=WRITE_INDEX,
    )  # fmt: skip
    deployment = Deployment(
        id="22222222-2222-2222-2222-222222222222", namespace="default", job_id="shop", status=DeploymentStatus.FAILED,
        task_groups={"web": DeploymentGroup()}, create_index=WRITE_INDEX,
    )  # fmt: skip
    event = TaskEvent(type=TaskEventType.TERMINATED, message="m", display_message="d", details={"a": "b"})
    failed = {"server": TaskState(state=TaskStatus.DEAD, failed=True, events=(event,))}
    await commit(
        server,
        SERVICES.build_put(service),
        HOST_VOLUMES.build_put(volume),
        DEPLOYMENTS.build_put(deployment),
        ALLOCATIONS.build_put(msgspec.structs.replace(allocation, task_states=failed)),
    )
    return ["/ui/services/shop-http", f"/ui/volumes/{volume.id}"]


def test_hostile_text_in_any_field_adds_nothing_to_any_page() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, browser = await a_cluster_with_work(cluster)
            addresses = [*await list_addresses(server), *await add_records(server)]
            assert await poison_all(server) > 10

            found: dict[str, object] = {}
            for address in addresses:
                page = await browser.get(address)
                is_harmless = "<img src=x" not in page.text and "<script>alert" not in page.text
                is_harmless = is_harmless and f'"{LINK}"' not in page.text
                problems = StrictHtml(page.text).problems
                if problems or not is_harmless or page.status >= 500:
                    found[address] = (page.status, problems, is_harmless)

            assert found == {}

    look()


def test_hostile_text_of_tokens_policies_and_browsers_adds_nothing() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server, secret = await a_server_with_access(cluster)
            browser = a_browser(server)
            await browser.post("/ui/sign-in", {"token": secret}, headers={"user-agent": HOSTILE.rstrip("\u202e")})
            for table in ACCESS_TABLES:
                for record in list(server.replica.iter_all(table)):
                    changed = {
                        name: HOSTILE for name in ("name", "description", "browser", "address") if hasattr(record, name)
                    }
                    await commit(server, table.build_put(msgspec.structs.replace(record, **changed)))
            policy = Policy(name=HOSTILE, description=HOSTILE, rules=HOSTILE, create_index=WRITE_INDEX)
            await commit(server, ACL_POLICIES.build_put(policy))

            paths = (
                "access",
                "access/tokens",
                "access/policies",
                f"access/policies/{quote(HOSTILE, safe='')}",
                "activity",
            )
            for path in paths:
                page = await browser.get(f"/ui/{path}")
                assert (page.status, find_problems(page.text), "<img src=x" in page.text) == (200, [], False), path

    look()
