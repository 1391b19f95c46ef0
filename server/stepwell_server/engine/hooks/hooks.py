"""Use cases of hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell_server.domain.hooks.hooks import Hook, HookFilter, HookKey, NewHook
from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.spine.jobs import JOB_PRIORITY
from stepwell_server.domain.spine.tasks import NewTask, Reason, Task
from stepwell_server.domain.values.asked import Asked
from stepwell_server.domain.values.errors import HookNotFound, StepwellError
from stepwell_server.domain.values.pages import Page, PageRequest
from stepwell_server.engine.hooks.calls import TriggerHook
from stepwell_server.engine.spine.batches import Batches
from stepwell_server.engine.spine.births import things
from stepwell_server.engine.spine.group import committed_by
from stepwell_server.engine.spine.ids import new_id
from stepwell_server.engine.spine.kinds import Committed
from stepwell_server.engine.spine.operators import Operator
from stepwell_server.engine.spine.replica import Replica
from stepwell_server.storage.database.database import READ, Tx
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.spine import requests
from stepwell_server.storage.spine import tasks as task_store
from stepwell_server.storage.spine.tasks import Stamp


@dataclass(frozen=True, slots=True)
class Hooks:
    """Hooks: trigger, look, retry, cancel."""

    replica: Replica
    batches: Batches
    tokens: PageTokens

    async def trigger(self, items: Sequence[tuple[NewHook | StepwellError, Asked]]) -> list[Hook | StepwellError]:
        """Store hooks, each decided by itself, in order. An item that could not be read is refused in its place."""
        return things(await self.batches.take(items, self._checked, _triggering))

    async def _checked(self, new: NewHook) -> NewHook:
        """The hook with an id, or why it is refused."""
        if not new.key.hook_id:
            new = replace(new, key=replace(new.key, hook_id=new_id()))
        new.check()
        await self.batches.check_payload(new.key.namespace, "payload", new.payload)
        await self.replica.registry.name(new.handler)
        return new

    def operators(self) -> dict[type, Operator[Any, Any]]:
        """How hooks are triggered as part of a transaction."""
        triggering: Operator[NewHook, Hook] = Operator(
            self._checked,
            lambda new: TriggerHook(Wanted(new)),
            lambda hook: hook.id,
            lambda tx, number: store.get_many(tx, [number])[number],
        )
        return {NewHook: triggering}

    async def get(self, key: HookKey) -> Hook:
        """The hook as it is now."""
        found = await self.replica.db.run_tx(lambda tx: store.get(tx, key), READ)
        if found is None:
            await self.replica.registry.limits_of(key.namespace)
            raise _not_found(key)
        return found

    async def list(self, wanted: HookFilter, page: PageRequest) -> Page[Hook]:
        """One page of the hooks of a namespace, the newest first."""
        limit = page.limit(self.replica.registry.limits.page_size)
        await self.replica.registry.limits_of(wanted.namespace)
        scope = ["ListHooks", *wanted.scope()]
        after = self.tokens.decode(scope, page.token) if page.token else None
        items, more = await self.replica.db.run_tx(lambda tx: store.list_page(tx, wanted, limit, after), READ)
        return Page(items, self.tokens.encode(scope, [items[-1].created_at, items[-1].id]) if more else "")

    async def retry(self, key: HookKey, asked: Asked) -> Hook:
        """Make a hook due at once; one that failed or was cancelled begins anew."""

        def change(tx: Tx, hook: Hook, task: Task | None, at: Stamp) -> list[Task]:
            hook.check_can_retry()
            if task is None:
                store.reopen(tx, hook)
                new = NewTask(hook.handler, key.hook_id, priority=JOB_PRIORITY, id=hook.id, revision=1)
                return list(task_store.insert(tx, [new], at).values())
            woken = task.woken(at.now, Reason.RETRY, JOB_PRIORITY)._replace(wake_again=False)
            if woken == task:
                return []
            task_store.save(tx, [woken])
            return [woken]

        return await self._change(key, asked, change, lambda tasks, at: committed_by(tasks, [], at))

    async def cancel(self, key: HookKey, asked: Asked) -> Hook:
        """End a hook that has not ended. Later reports of its handler are not stored."""

        def change(tx: Tx, hook: Hook, task: Task | None, at: Stamp) -> list[Task]:
            hook.check_can_cancel()
            assert task is not None
            task_store.remove(tx, [task.id])
            store.cancel(tx, hook, at.now)
            return [task]

        def news(tasks: Sequence[Task], at: Stamp) -> Committed:
            return committed_by([], tasks, at, [one.id for one in tasks])

        return await self._change(key, asked, change, news)

    async def _change(
        self,
        key: HookKey,
        asked: Asked,
        change: Callable[[Tx, Hook, Task | None, Stamp], Sequence[Task]],
        news: Callable[[Sequence[Task], Stamp], Committed],
    ) -> Hook:
        """Change one hook under its lock, once per request id, and announce it."""
        asked.check()
        touched = list[Task]()
        await self.replica.registry.limits_of(key.namespace)

        def work(tx: Tx) -> Hook:
            found = store.lock(tx, key)
            if found is None:
                raise _not_found(key)
            touched.extend(change(tx, *found, task_store.stamp(tx)))
            return _read(tx, key)

        def whole(tx: Tx) -> tuple[Hook, Stamp]:
            touched.clear()
            load: Callable[[Any], Hook] = lambda _: _read(tx, key)  # noqa: E731
            hook = requests.once(tx, key.namespace, asked, lambda: work(tx), dump=lambda one: one.id, load=load)
            return hook, task_store.stamp(tx)

        hook, at = await self.replica.db.run_tx(whole)
        self.replica.announce(news(touched, at))
        return hook


def _triggering(new: NewHook, asked: Asked) -> TriggerHook:
    return TriggerHook(Wanted.by(new, asked))


def _read(tx: Tx, key: HookKey) -> Hook:
    hook = store.get(tx, key)
    assert hook is not None
    return hook


def _not_found(key: HookKey) -> HookNotFound:
    return HookNotFound("there is no such hook", hook_id=key.hook_id)
