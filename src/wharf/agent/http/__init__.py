"""The agent's HTTP port: limits on connections, the server protocol and the listening server."""
