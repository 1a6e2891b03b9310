"""The pages: each function asks the API, and returns a view with its template."""

from typing import Final

from wharf.web.page import Route
from wharf.web.pages import (
    access,
    actions,
    activity,
    allocations,
    files,
    jobs,
    limits,
    logs,
    namespaces,
    nodes,
    overview,
    pools,
    provider_sign_in,
    queue,
    quotas,
    run,
    runs,
    search,
    servers,
    services,
    sign_in,
    steps,
    terminal,
    variables,
    versions,
    volumes,
)

ROUTES: Final[tuple[Route, ...]] = (
    *overview.ROUTES, *jobs.ROUTES, *logs.ROUTES, *versions.ROUTES, *actions.ROUTES, *runs.ROUTES, *steps.ROUTES, *run.ROUTES, *allocations.ROUTES, *files.ROUTES, *terminal.ROUTES, *nodes.ROUTES, *sign_in.ROUTES,
    *provider_sign_in.ROUTES,
    *search.ROUTES, *queue.ROUTES, *servers.ROUTES, *access.ROUTES, *namespaces.ROUTES, *quotas.ROUTES, *limits.ROUTES, *pools.ROUTES,
    *services.ROUTES, *variables.ROUTES, *volumes.ROUTES, *activity.ROUTES,
)  # fmt: skip
"""All pages."""
