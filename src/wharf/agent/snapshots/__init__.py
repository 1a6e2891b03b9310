"""Snapshots of the cluster state: scheduled, saved and restored by commands, and transferred over HTTP."""
