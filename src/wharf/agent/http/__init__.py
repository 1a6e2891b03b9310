"""The HTTP port of api processes: protocol, connection limits and rate limits."""
