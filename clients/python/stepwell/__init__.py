"""Stepwell: durable workflows, hooks and jobs over one small server.

This release holds the generated stubs (`stepwell.v1`), the channel that they are used with, and the `stepwell` command.
"""

from stepwell.channel import open_channel
from stepwell.errors import CallFailed, failure_of

__version__ = "0.1.0"

__all__ = ["CallFailed", "failure_of", "open_channel"]
