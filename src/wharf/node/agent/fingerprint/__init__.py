"""What the node reports about itself: the machine, its drivers, its metadata and ports that other programs hold."""
