"""Records that operators configure: scheduler configuration, autopilot and rebalancing."""
