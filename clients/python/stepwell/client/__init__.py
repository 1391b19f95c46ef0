"""The client: calls, batches, watches and transactions over one channel."""
