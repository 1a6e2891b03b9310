"""The allowed status changes of jobs, evaluations, allocations, deployments, nodes and tasks."""
