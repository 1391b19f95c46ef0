"""The namespaces of every chaos run."""

NAMESPACE = "default"
ELSEWHERE = "elsewhere"
"""Another namespace, with things of the same ids."""
NAMESPACES = (NAMESPACE, ELSEWHERE)
