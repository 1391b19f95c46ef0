"""How long a test waits for what must come: longer than a busy machine takes, shorter than pytest's own limit."""

PATIENCE = 45.0
"""Seconds."""
