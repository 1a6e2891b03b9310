"""Routing of paths to endpoints, and replies to paths without an endpoint."""
