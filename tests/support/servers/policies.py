"""Policies for tests."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell_server.api.edge.access import Caller, Category, Principal


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


class AsGranted:
    """A policy that believes its callers: their names say what they may do, as `known_as` writes it."""

    async def authenticate(self, caller: Caller) -> Principal:
        """By the name that is said."""
        return Principal(str(caller.metadata.get("authorization", "nobody")))

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """What the name says."""
        grants = principal.name.partition(" ")[2].split(",")
        return not {f"{category}@{namespace}", f"*@{namespace}", f"{category}@*", "*@*"}.isdisjoint(grants)


def known_as(name: str, *grants: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a caller that may do this: `category@namespace` each, with * for all of either."""
    return (("authorization", f"{name} {','.join(grants)}"),)


def all_but(category: Category, namespace: str) -> Iterable[str]:
    """Grants of every other category there."""
    return (f"{one}@{namespace}" for one in Category if one is not category)
