"""Commands about nodes: `wharf node …`."""
