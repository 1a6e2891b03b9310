"""What servers, nodes and clients share: the model, the messages of the HTTP API and the client."""
