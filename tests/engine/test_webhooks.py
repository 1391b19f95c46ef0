"""The replica as the worker of webhooks: what it takes and cannot deliver."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from sqlalchemy import select

from stepwell_server.domain.hooks.hooks import HookKey, HookStatus, NewHook
from stepwell_server.domain.hooks.webhooks import Completed, Failed, Post, PostResult, Target
from stepwell_server.domain.namespaces import NamespaceSpec
from stepwell_server.domain.spine.births import Wanted
from stepwell_server.domain.values.asked import NOT_ASKED
from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.engine.hooks.breakers import FAILURES, REST, Breaker
from stepwell_server.engine.hooks.calls import TriggerHook
from stepwell_server.engine.hooks.posts import Deliverer, new_secret
from stepwell_server.engine.hooks.targets import Targets
from stepwell_server.engine.hooks.webhooks import Webhooks
from stepwell_server.engine.spine.assignments import Ask, Capacity, Claimed
from stepwell_server.engine.spine.calls import Claim
from stepwell_server.storage import namespaces
from stepwell_server.storage.database.paging import PageTokens
from stepwell_server.storage.hooks import hooks as store
from stepwell_server.storage.hooks import targets
from stepwell_server.storage.schema import tasks
from tests.support.faults.forcing import held_before_commit
from tests.support.replicas.runs import Engine, until


async def test_a_hook_whose_target_is_gone_by_then_is_given_back_uncounted(engine: Engine) -> None:
    webhooks = Webhooks(engine.replica, Deliverer(), per_namespace=10)
    new = NewHook(HookKey("default", "h"), "note", Payload("{}"), "key")
    await engine.submit(TriggerHook(Wanted(new)))
    ask = Ask([Capacity(webhooks._worker.owner, frozenset([new.handler]), 1)])
    claimed: Claimed = await engine.submit(Claim(ask, by_call=True))
    webhooks._take(claimed.assigned[0])

    await until(lambda: not webhooks._under_way)

    hook = await engine.db.run_tx(lambda tx: store.get(tx, new.key))
    assert hook is not None
    assert (hook.status, hook.attempts, hook.failure) == (HookStatus.PENDING, 0, None)
    assert await engine.db.run_tx(lambda tx: tx.execute(select(tasks.c.session_id)).scalar_one()) is None


class Scripted(Deliverer):
    """Delivers nothing: a test says what becomes of each, and when."""

    def __init__(self) -> None:
        self.result: PostResult = Completed()
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: list[str] = []
        self.at_once: Counter[str] = Counter()
        self.most_at_once: Counter[str] = Counter()

    async def deliver(self, target: Target, post: Post) -> PostResult:
        self.begun.append(post.idempotency_key)
        self.at_once[target.namespace] += 1
        self.most_at_once |= self.at_once
        await self.gate.wait()
        self.at_once[target.namespace] -= 1
        return self.result


@dataclass
class Delivering:
    """A replica that delivers webhooks, and a clock of its process that stands."""

    engine: Engine
    deliverer: Scripted = field(default_factory=Scripted)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.webhooks = Webhooks(self.engine.replica, self.deliverer, 2, now=lambda: self.seconds)

    async def put(self, namespace: str, *names: str, url: str = "https://example.com/") -> None:
        for name in names:
            await self.engine.db.run_tx(lambda tx, name=name: targets.put(tx, namespace, name, url, ()))
        await self.webhooks.refresh()

    async def trigger(self, namespace: str, name: str, *hook_ids: str) -> None:
        for hook_id in hook_ids:
            new = NewHook(HookKey(namespace, hook_id), name, Payload("{}"), hook_id)
            await self.engine.submit(TriggerHook(Wanted(new)))

    async def begun(self, *hook_ids: str) -> None:
        await until(lambda: {*hook_ids} <= {*self.deliverer.begun})

    async def at_rest(self) -> None:
        await until(lambda: not self.webhooks._under_way)


@pytest.fixture
async def delivering(engine: Engine) -> AsyncIterator[Delivering]:
    one = Delivering(engine)
    await engine.db.run_tx(lambda tx: namespaces.insert(tx, NamespaceSpec("other")))
    loops = [asyncio.create_task(engine.handout.run()), asyncio.create_task(one.webhooks.run())]
    yield one
    one.deliverer.gate.set()
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def test_slow_webhooks_of_one_namespace_leave_places_to_others(delivering: Delivering) -> None:
    slow = {name: [f"{name}{number}" for number in range(2)] for name in ("a", "b", "c")}
    delivering.deliverer.gate.clear()
    await delivering.put("default", *slow)
    await delivering.put("other", "x")
    for name, hook_ids in slow.items():
        await delivering.trigger("default", name, *hook_ids)
    await until(lambda: delivering.deliverer.at_once["default"] == 2)

    await delivering.trigger("other", "x", "quick")
    await delivering.begun("quick")
    delivering.deliverer.gate.set()
    await delivering.begun(*(one for hook_ids in slow.values() for one in hook_ids))

    assert delivering.deliverer.most_at_once == {"default": 2, "other": 1}
    assert len(delivering.deliverer.begun) == 7


async def test_a_broken_target_rests_uncounted_until_one_delivery_shows_that_it_is_back(
    delivering: Delivering,
) -> None:
    deliverer = delivering.deliverer
    deliverer.result = Failed(Failure("WEBHOOK_TIMEOUT", "no answer"), is_outage=True)
    await delivering.put("default", "broken", "sound")
    failing = [f"f{number}" for number in range(FAILURES)]
    for hook_id in failing:
        await delivering.trigger("default", "broken", hook_id)
        await delivering.begun(hook_id)
        await delivering.at_rest()

    deliverer.result = Completed()
    await delivering.trigger("default", "broken", "late", "later")
    await delivering.trigger("default", "sound", "fine")
    await delivering.begun("fine")
    await delivering.at_rest()
    late = await delivering.engine.db.run_tx(lambda tx: store.get(tx, HookKey("default", "late")))
    assert late is not None
    assert (deliverer.begun, late.attempts) == ([*failing, "fine"], 0)

    deliverer.gate.clear()
    delivering.seconds += REST
    await delivering.webhooks.refresh()
    await delivering.begun("late")
    await delivering.trigger("default", "sound", "too")
    await delivering.begun("too")
    assert "later" not in deliverer.begun
    deliverer.gate.set()
    await delivering.begun("later")


def test_a_breaker_counts_outages_in_a_row_and_opens_again_if_its_probe_fails() -> None:
    breaker = Breaker()
    for is_outage in [True] * (FAILURES - 1) + [False] + [True] * (FAILURES - 1):
        assert not breaker.note(0, is_outage=is_outage)
    assert breaker.admits(0)

    assert breaker.note(0, is_outage=True)
    assert [breaker.admits(now) for now in (0, REST - 1, REST)] == [False, False, True]
    breaker.begin()
    assert not breaker.admits(REST)
    assert breaker.note(REST, is_outage=True)
    breaker.end()
    assert [breaker.admits(now) for now in (REST, 2 * REST)] == [False, True]


async def test_a_target_that_is_put_with_another_url_does_not_rest(delivering: Delivering) -> None:
    delivering.deliverer.result = Failed(Failure("WEBHOOK_TIMEOUT", "no answer"), is_outage=True)
    await delivering.put("default", "broken")
    for number in range(FAILURES):
        await delivering.trigger("default", "broken", f"f{number}")
        await delivering.begun(f"f{number}")
        await delivering.at_rest()

    await delivering.put("default", "broken", url="https://example.org/")
    await delivering.trigger("default", "broken", "next")

    await delivering.begun("next")


async def test_a_target_that_was_put_is_delivered_to_from_then_on(engine: Engine) -> None:
    webhooks = Webhooks(engine.replica, Deliverer(), 2)

    old, new = [await put(engine, webhooks) for _ in range(2)]

    assert (known_secrets(webhooks), old != new) == ([new], True)


async def test_targets_that_were_read_before_a_change_do_not_undo_it(replicas: tuple[Engine, Engine]) -> None:
    engine, _ = replicas
    webhooks = Webhooks(engine.replica, Deliverer(), 2)

    async with held_before_commit(engine, webhooks.refresh(), "read"):
        secret = await put(engine, webhooks)

    assert known_secrets(webhooks) == [secret]


async def put(engine: Engine, webhooks: Webhooks) -> str:
    """Put the target of "note" with a secret of its own, and return that."""
    targets, secret = Targets(engine.replica, PageTokens(b"k" * 32), frozenset(), webhooks.refresh), new_secret().text
    await targets.put("default", "note", "https://example.com/in", [secret], NOT_ASKED)
    return secret


def known_secrets(webhooks: Webhooks) -> list[str]:
    """The secrets that the next deliveries are signed with."""
    return [secret.text for served in webhooks._served.values() for secret in served.target.secrets]
