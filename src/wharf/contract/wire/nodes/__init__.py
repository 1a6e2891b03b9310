"""Messages and endpoints of nodes, and the messages on the channel between a node and its server."""
