"""Use cases of namespaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from stepwell_server.domain.namespaces import Namespace, NamespaceLimits, NamespaceSpec, Retention, check_name
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import NamespaceAlreadyExists, NamespaceNotFound
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.pages import Page, PageRequest
from stepwell_server.engine.spine.registry import Registry
from stepwell_server.storage import namespaces as store
from stepwell_server.storage.database.database import READ, Database, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.spine import requests

_READ_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Namespaces: create, list, update."""

    db: Database
    tokens: PageTokens
    limits: Limits
    registry: Registry

    async def create(self, spec: NamespaceSpec, asked: Asked) -> Namespace:
        """Add a namespace. One of that name that exists already is refused."""
        asked.check()

        def insert(tx: Tx) -> Namespace:
            spec.check(self.limits)  # after a repetition was answered: limits may have changed since
            return _insert(tx, spec)

        def work(tx: Tx) -> Namespace:
            return requests.once(tx, "", asked, lambda: insert(tx), dump=asdict, load=_load)

        return await self.db.run_tx(work)

    async def list(self, page: PageRequest, principal: str, is_shown: Callable[[str], bool]) -> Page[Namespace]:
        """One page of the namespaces that are shown to the principal, by name."""
        limit = page.limit(self.limits.page_size)
        scope = ["ListNamespaces", principal]
        after = self.tokens.decode(scope, page.token) if page.token else None
        shown: list[Namespace] = []
        while len(shown) <= limit:  # what is passed over must not be told by the position in a token
            found = await self.db.run_tx(partial(store.list_page, limit=_READ_AT_ONCE, after=after), READ)
            shown += [one for one in found if is_shown(one.spec.name)]
            if len(found) < _READ_AT_ONCE:
                break
            after = [found[-1].spec.name]
        items, more = shown[:limit], len(shown) > limit
        return Page(items, self.tokens.encode(scope, [items[-1].spec.name]) if more else "")

    async def update(self, change: NamespaceSpec, mask: Sequence[str], asked: Asked) -> Namespace:
        """Take the masked fields of `change` over into the namespace of that name."""
        check_name(change.name)
        asked.check()

        def apply(tx: Tx) -> Namespace:
            current = store.lock(tx, change.name)
            if current is None:
                raise NamespaceNotFound("there is no such namespace", namespace=change.name)
            wanted = current.spec.updated(change, mask)
            wanted.check(self.limits)
            return store.save(tx, wanted)

        def work(tx: Tx) -> Namespace:
            return requests.once(tx, "", asked, lambda: apply(tx), dump=asdict, load=_load)

        updated = await self.db.run_tx(work)
        self.registry.forget(change.name)
        return updated


def _insert(tx: Tx, spec: NamespaceSpec) -> Namespace:
    created = store.insert(tx, spec)
    if created is None:
        raise NamespaceAlreadyExists("a namespace of that name exists", namespace=spec.name)
    return created


def _load(reply: dict[str, Any]) -> Namespace:
    """A namespace from the reply that `asdict` made of it."""
    spec = dict(reply["spec"])
    spec["retention"] = Retention(**spec["retention"])
    spec["limits"] = NamespaceLimits(**spec["limits"])
    return Namespace(NamespaceSpec(**spec), reply["created_at"], reply["updated_at"])
