"""Messages and endpoints about nodes, and of the channel between a node and its server."""
