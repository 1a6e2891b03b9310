"""What a task has fetched before it starts: files and archives by HTTP, repositories by git.

Responsible for where a source comes from, that it is what its checksum says, and that nothing of it lands outside the
task's folder or grows over its bounds. It never runs anything of what it fetched.
"""

from wharf.node.artifacts.errors import ArtifactError
from wharf.node.artifacts.fetcher import ArtifactLimits, ArtifactRequest, fetch_artifact

__all__ = ["ArtifactError", "ArtifactLimits", "ArtifactRequest", "fetch_artifact"]
