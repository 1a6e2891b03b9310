"""Records of nodes: the node and its resources."""
