"""Handlers of jobs: specifications, control, reads, statuses, versions and actions."""
