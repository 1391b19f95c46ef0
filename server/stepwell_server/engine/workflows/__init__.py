"""Workflows: use cases, hot calls, what a group knows of its runs, watches."""
