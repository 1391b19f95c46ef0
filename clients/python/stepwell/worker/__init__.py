"""The worker: its stream, its leases, and the runs and jobs that it executes."""
