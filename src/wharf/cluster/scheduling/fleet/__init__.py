"""The fleet: nodes and what they use, as numpy columns."""
