"""The node agent: what it is told and what it sees become actions. It never touches state or engines."""
