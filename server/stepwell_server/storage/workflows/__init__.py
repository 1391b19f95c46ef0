"""Rows of workflows: instances, steps, events."""
