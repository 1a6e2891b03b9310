"""Prepares what a task finds when it starts: folders, payload, artifacts, rendered templates, secrets and
environment.

Also keeps rendered files and tokens up to date while the task runs. The node core decides what a failure or a change
means for the task.
"""
