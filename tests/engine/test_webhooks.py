"""The replica as the worker of webhooks: what it takes and cannot deliver."""

from __future__ import annotations

from sqlalchemy import select

from stepwell_server.domain.hooks import HookKey, HookStatus, NewHook
from stepwell_server.domain.payloads import Payload
from stepwell_server.engine.claims import Claimed, Seat
from stepwell_server.engine.deliveries import Deliverer
from stepwell_server.engine.dispatch import Delivery
from stepwell_server.engine.hook_calls import TriggerHook
from stepwell_server.engine.jobs import Triggered
from stepwell_server.engine.tasks import Claim
from stepwell_server.engine.webhooks import Webhooks
from stepwell_server.storage import hooks as store
from stepwell_server.storage.schema import tasks
from tests.support.runs import Engine, until


async def test_a_hook_whose_target_is_gone_by_then_is_given_back_uncounted(engine: Engine) -> None:
    webhooks, new = Webhooks(engine.spine, Deliverer()), NewHook(HookKey("default", "h"), "note", Payload("{}"), "key")
    await engine.submit(TriggerHook(Triggered(new)))
    seat = Seat(webhooks._place.owner, frozenset([new.handler]), 1)
    claimed: Claimed = await engine.submit(Claim([seat]))
    webhooks._take([Delivery(claimed.handed[0], ())])

    await until(lambda: not webhooks._under_way)

    hook = await engine.db.run_tx(lambda tx: store.get(tx, new.key))
    assert hook is not None
    assert (hook.status, hook.attempts, hook.failure) == (HookStatus.PENDING, 0, None)
    assert await engine.db.run_tx(lambda tx: tx.execute(select(tasks.c.session_id)).scalar_one()) is None
