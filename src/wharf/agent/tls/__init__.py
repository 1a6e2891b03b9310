"""TLS: certificates of a cluster, and TLS contexts from configured files."""
