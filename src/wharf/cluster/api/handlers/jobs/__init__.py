"""Handlers of jobs."""
