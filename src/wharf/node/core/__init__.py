"""What a node decides: (what it was told, what it sees, the moment) + event -> what it does. It never waits, and it
knows neither clock nor process: the agent and the simulator drive it alike.
"""
