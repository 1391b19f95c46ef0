"""Use cases of hook targets: put, list, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from stepwell_server.domain.hooks.hooks import check_hook_name
from stepwell_server.domain.hooks.webhooks import AllowList, Secret, Target, check_secrets, check_url
from stepwell_server.domain.spine.handlers import Handler
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import HookTargetNotFound, WebhooksDisabled
from stepwell_server.domain.values.pages import Page, PageRequest
from stepwell_server.engine.hooks.posts import new_secret
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.hooks import targets as store
from stepwell_server.storage.spine import handlers, requests
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.wakes import next_wakes


@dataclass(frozen=True, slots=True)
class Targets:
    """Which webhook the hooks of a name go to."""

    replica: Replica
    tokens: PageTokens
    allowed: AllowList
    on_change: Callable[[], Awaitable[None]] | None
    """Tells the part of this server that delivers to them. None: there is none."""

    async def put(
        self, namespace: str, name: str, url: str, secrets: Sequence[str], asked: Asked
    ) -> tuple[Target, Sequence[Secret]]:
        """Send the hooks of a name to a webhook, with the secrets given, kept or new, in this order of preference.

        Returns the target, and those of its secrets that this very request has made. No other call shows them.
        """
        if self.on_change is None:
            raise WebhooksDisabled("this server delivers no webhooks: start it with --webhooks")
        check_hook_name(name)
        check_url(url, self.allowed)
        given, fresh = check_secrets(secrets), new_secret()

        def work(tx: Tx) -> str:
            known = store.get(tx, namespace, name)
            handlers.admit(tx, namespace, [store.handler_of(namespace, name)], self.replica.registry.limits.handlers)
            chosen = given or (known.secrets if known else (fresh,))
            store.put(tx, namespace, name, url, chosen)
            return fresh.fingerprint if fresh in chosen else ""

        target, made = await self._change(namespace, name, asked, work)
        if target is None:  # this is a repetition, and another call has deleted it meanwhile
            raise _not_found(name)
        return target, [one for one in target.secrets if one.fingerprint == made]

    async def delete(self, namespace: str, name: str, asked: Asked) -> None:
        """Remove a target. Its hooks wait for a worker or another target."""

        def work(tx: Tx) -> str:
            if not store.remove(tx, namespace, name):
                raise _not_found(name)
            return ""

        await self._change(namespace, name, asked, work)

    async def list(self, namespace: str, page: PageRequest) -> Page[Target]:
        """One page of the targets of a namespace, by name."""
        limit = page.limit(self.replica.registry.limits.page_size)
        await self.replica.registry.limits_of(namespace)
        scope = ["ListHookTargets", namespace]
        after = self.tokens.decode(scope, page.token) if page.token else None
        found = await self.replica.db.run_tx(lambda tx: store.list_page(tx, namespace, limit + 1, after), READ)
        shown = found[:limit]
        return Page(shown, self.tokens.encode(scope, [shown[-1].name]) if len(found) > limit else "")

    async def _change(
        self, namespace: str, name: str, asked: Asked, work: Callable[[Tx], str]
    ) -> tuple[Target | None, str]:
        """Change a target, once per request id, and announce it. Returns the target and the result of the work."""
        asked.check()
        await self.replica.registry.limits_of(namespace)

        mark = self.replica.bus.notes.mark()

        def whole(tx: Tx) -> tuple[Target | None, str, Committed]:
            done = requests.once(tx, namespace, asked, lambda: work(tx), dump=str, load=str)
            return store.get(tx, namespace, name), done, changed(tx, store.handler_of(namespace, name), mark)

        target, done, committed = await self.replica.db.run_tx(whole)
        self.replica.announce(committed)
        if self.on_change is not None:
            await self.on_change()
        return target, done


def changed(tx: Tx, handler: Handler, mark: int) -> Committed:
    """The news of a transaction after which a handler may do more, or less, than before."""
    at, wakes = task_store.stamp(tx), tuple(next_wakes(tx, [handler]))
    return Committed(frozenset([handler]), at, wakes=wakes, mark=mark)


def _not_found(name: str) -> HookTargetNotFound:
    return HookTargetNotFound("there is no target of that name", name=name)
