"""Hooks: one-shot messages to a handler or to a webhook."""
