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


class AllButOne:
    """A policy that refuses one category to everybody."""

    refused: Category

    async def authenticate(self, caller: Caller) -> Principal:
        """Everybody is the same."""
        return Principal("somebody")

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """Everything else."""
        return category is not self.refused


class NobodyCreates(AllButOne):
    """No new instances."""

    refused = Category.CREATE


class NobodyManages(AllButOne):
    """No pause, resume, terminate, restart."""

    refused = Category.MANAGE


class NobodySends(AllButOne):
    """No events."""

    refused = Category.EVENT
