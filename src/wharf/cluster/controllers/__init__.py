"""What happens over time: which evaluation is next, whose heartbeat is late. Pure: time and events come in, answers go out."""
