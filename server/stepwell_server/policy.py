"""The names that a policy is written with. They stay where they are."""

from stepwell_server.api.edge.access import AllowAll, Caller, Category, Policy, Principal
from stepwell_server.domain.values.errors import Unauthenticated

__all__ = ["AllowAll", "Caller", "Category", "Policy", "Principal", "Unauthenticated"]
