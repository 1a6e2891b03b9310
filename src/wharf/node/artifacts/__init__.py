"""Fetches the artifacts of a task before it starts: files and archives over HTTP, and git repositories."""

from wharf.node.artifacts.fetcher import ArtifactLimits, ArtifactRequest, fetch_artifact
from wharf.node.unpacking.errors import ArtifactError

__all__ = ["ArtifactError", "ArtifactLimits", "ArtifactRequest", "fetch_artifact"]
