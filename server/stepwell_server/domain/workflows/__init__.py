"""Workflows: instances and their runs."""
