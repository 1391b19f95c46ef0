"""Hooks: use cases, hot calls, what a group knows of its jobs, webhooks."""
