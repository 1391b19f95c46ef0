"""Policies for tests."""

from __future__ import annotations

from stepwell_server.api.access import Caller, Category, Principal


class Broken:
    """A policy that fails on every caller."""

    async def authenticate(self, caller: Caller) -> Principal:
        """Fail."""
        raise RuntimeError("it broke")

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """Never asked."""
        return False
