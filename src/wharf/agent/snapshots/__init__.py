"""Snapshots of the state on schedule and on request, and their files."""
