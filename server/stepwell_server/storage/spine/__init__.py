"""Rows of the spine: tasks, leases, handlers, sessions, requests."""
