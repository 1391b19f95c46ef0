"""Tasks and leases, as a primitive and its workers meet them."""

from __future__ import annotations

import asyncio

import pytest

from stepwell_server.domain.spine.handlers import Handler, TaskKind
from stepwell_server.domain.spine.leases import Owner
from stepwell_server.domain.spine.tasks import BEGUN_PRIORITY, NewTask, Reason, Stop, TaskStatus, Verdict
from stepwell_server.domain.values.times import HOUR, SECOND
from stepwell_server.engine.spine import calls
from stepwell_server.storage.spine import leases, limits
from stepwell_server.storage.spine import tasks as store
from tests.support.replicas import tickets
from tests.support.replicas.spine import ANNA, BEN, CHARGING, ORDER, Spine, held


async def test_a_due_task_is_claimed_once(spine: Spine) -> None:
    await spine.schedule()

    first, second = await asyncio.gather(spine.claim(ANNA), spine.claim(BEN))

    assert len(first) + len(second) == 1


async def test_a_hundred_claims_of_one_task_have_one_winner_and_no_error(spine: Spine) -> None:
    await spine.schedule()

    claims = await asyncio.gather(*(spine.claim(Owner(f"{n:032x}", 1)) for n in range(100)))

    assert sum(map(len, claims)) == 1


async def test_a_task_is_not_handed_out_before_its_time(spine: Spine) -> None:
    task = await spine.schedule(run_at=await spine.now() + HOUR)

    assert await spine.claim() == []
    assert task.status is TaskStatus.PENDING


async def test_one_key_has_one_task(spine: Spine) -> None:
    await spine.schedule("same")

    again = await asyncio.gather(*(spine.submit(tickets.Schedule(NewTask(ORDER, "same"))) for _ in range(5)))

    assert again == [None] * 5
    assert len(await spine.rows()) == 1


async def test_the_most_urgent_goes_first_and_then_the_oldest(spine: Spine) -> None:
    now = await spine.now()
    for key, priority, run_at in (("c", 1, 5), ("b", 1, 3), ("d", 9, 1), ("a", 0, 9), ("e", 9, 2)):
        await spine.schedule(key, priority=priority, run_at=now - HOUR + run_at)

    order = [(await spine.claim_one()).key for _ in range(5)]

    assert order == ["a", "b", "c", "d", "e"]


async def test_a_stream_of_new_work_does_not_starve_what_resumes(spine: Spine) -> None:
    await spine.schedule("old", priority=0)
    for number in range(50):
        await spine.schedule(f"new{number}", priority=9)

    assert (await spine.claim_one()).key == "old"


async def test_a_claim_is_for_the_ack_window_and_an_acknowledgement_makes_it_a_lease(spine: Spine) -> None:
    await spine.schedule()
    claimed = await spine.claim_one()
    at = await spine.db.run_tx(store.stamp)
    assert claimed.locked_until is not None
    assert claimed.locked_until <= at.lease_now + spine.times.ack_window

    assert (await spine.renew(claimed)).verdict is Verdict.ACCEPTED

    renewed = await spine.read(claimed.id)
    assert renewed is not None and renewed.locked_until is not None
    assert renewed.locked_until > at.lease_now + spine.times.lease - SECOND
    assert renewed.acked


async def test_a_task_that_is_not_acknowledged_in_time_goes_back(spine: Spine) -> None:
    await spine.schedule()
    lost = await spine.claim_one(ANNA)

    await spine.pass_lease_time(5)
    assert await spine.sweep() == []
    await spine.pass_lease_time(6)
    (returned,) = await spine.sweep()

    assert (returned.reason, returned.interruptions) == (Reason.TAKEOVER, 0)
    taken = await spine.claim_one(BEN)
    assert taken.fence > lost.fence
    assert (await spine.renew(lost)).verdict is Verdict.STALE


async def test_a_silent_worker_loses_its_task_to_a_living_one(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one(ANNA)
    await spine.renew(mine)
    await spine.advance(mine, 1, open_steps=CHARGING)

    await spine.pass_lease_time(31)
    (returned,) = await spine.sweep()
    assert (returned.reason, returned.open_steps, spine.counted(mine.id)) == (Reason.TAKEOVER, CHARGING, {})
    theirs = await spine.claim_one(BEN)

    assert (theirs.open_steps, spine.counted(mine.id)) == ("", {"charge": 1})
    assert (await spine.advance(mine, 2)).verdict is Verdict.STALE
    assert (await spine.finish(theirs)).verdict is Verdict.ACCEPTED
    assert await spine.rows() == []


@pytest.mark.parametrize(("acked", "frames", "counted"), [(False, 0, 0), (True, 0, 1), (True, 1, 0)])
async def test_a_lost_holder_is_counted_if_it_had_the_task_and_never_said_what_it_had_begun(
    spine: Spine, acked: bool, frames: int, counted: int
) -> None:
    await spine.schedule()
    for taken in (1, 2):
        mine = await spine.claim_one()
        if acked:
            await spine.renew(mine)
        for number in range(1, frames + 1):
            await spine.advance(mine, number)
        await spine.pass_lease_time(31)
        (returned,) = await spine.sweep()
        assert returned.interruptions == counted * taken


async def test_a_worker_that_renews_keeps_its_task_for_ever(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()

    for _ in range(5):
        assert (await spine.renew(mine)).verdict is Verdict.ACCEPTED
        await spine.pass_lease_time(20)
        assert await spine.sweep() == []


async def test_a_renewal_of_what_went_back_changes_nothing(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    await spine.release(mine, run_at=await spine.now() + HOUR)
    before = await spine.read(mine.id)

    answer = await spine.renew(mine)

    assert answer.verdict is Verdict.STALE
    assert await spine.read(mine.id) == before
    assert before is not None and (before.owner, before.locked_until) == (None, None)


async def test_a_renewal_by_somebody_else_changes_nothing(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one(ANNA)
    before = await spine.read(mine.id)

    assert (await spine.renew(mine, BEN)).verdict is Verdict.STALE
    assert await spine.read(mine.id) == before


async def test_a_released_task_comes_back_at_its_time(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()

    await spine.release(mine, run_at=await spine.now() + HOUR)
    assert await spine.claim() == []

    await spine.submit(tickets.Wake(mine.id, priority=0))
    again = await spine.claim_one()
    assert (again.reason, again.frame_number) == (Reason.WAKE, 0)
    assert again.revision > mine.revision


async def test_what_comes_while_a_task_is_held_is_not_lost(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    await spine.submit(tickets.Wake(mine.id, priority=0))
    assert (await spine.renew(mine)).wake_again

    await spine.release(mine, run_at=await spine.now() + HOUR)

    assert (await spine.claim_one()).id == mine.id


async def test_a_task_is_not_deleted_while_more_waits_on_its_key(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    await spine.submit(tickets.Wake(mine.id, priority=0))

    assert (await spine.finish(mine)).verdict is Verdict.ACCEPTED

    again = await spine.claim_one()
    assert (again.id, again.wake_again) == (mine.id, False)
    await spine.finish(again)
    assert await spine.rows() == []


async def test_a_repeated_frame_is_acknowledged_and_applied_once(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()

    answers = [await spine.advance(mine, number) for number in (1, 1, 2, 1, 2)]

    assert [one.verdict for one in answers] == [
        Verdict.ACCEPTED, Verdict.REPEATED, Verdict.ACCEPTED, Verdict.REPEATED, Verdict.REPEATED,
    ]  # fmt: skip
    stored = await spine.read(mine.id)
    assert stored is not None and (stored.revision, stored.frame_number) == (mine.revision + 2, 2)


async def test_a_repeated_release_is_acknowledged_though_the_task_is_no_longer_held(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    later = await spine.now() + HOUR
    await spine.release(mine, 1, later)

    assert (await spine.release(mine, 1, later)).verdict is Verdict.REPEATED
    assert (await spine.advance(mine, 2)).verdict is Verdict.STALE


async def test_frames_of_one_task_in_one_group_are_applied_in_order(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    later = await spine.now() + HOUR

    answers = await asyncio.gather(
        spine.advance(mine, 1, CHARGING), spine.advance(mine, 2), spine.release(mine, 3, later), spine.advance(mine, 4)
    )

    assert [one.verdict for one in answers] == [*[Verdict.ACCEPTED] * 3, Verdict.STALE]
    stored = await spine.read(mine.id)
    assert stored is not None and (stored.frame_number, stored.open_steps) == (3, "")
    assert (stored.run_at, stored.status) == (later, TaskStatus.PENDING)


async def test_a_fence_is_never_issued_twice_even_for_a_task_that_was_deleted(spine: Spine) -> None:
    fences = []
    for _ in range(5):
        await spine.schedule("same")
        task = await spine.claim_one()
        fences.append(task.fence)
        await spine.finish(task)

    assert len(set(fences)) == 5
    await spine.schedule("same")
    newborn = await spine.claim_one()
    assert (await spine.advance(task)).verdict is Verdict.STALE
    assert newborn.fence > max(fences)


async def test_a_seized_task_is_out_of_its_holders_hands_at_once(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()

    await spine.db.run_tx(lambda tx: tickets.seize(tx, mine.id))

    assert (await spine.advance(mine)).verdict is Verdict.STALE
    assert (await spine.claim_one(BEN)).id == mine.id


async def test_a_paused_task_is_parked_and_a_resumed_one_is_due(spine: Spine) -> None:
    task = await spine.schedule()
    await spine.db.run_tx(lambda tx: tickets.pause(tx, task.id))
    assert await spine.claim() == []
    await spine.submit(tickets.Wake(task.id, priority=0))
    assert await spine.claim() == []

    await spine.db.run_tx(lambda tx: tickets.resume(tx, task.id, 0))

    assert (await spine.claim_one()).reason is Reason.RESUME


async def test_a_pause_of_a_held_task_waits_for_the_next_frame_and_is_told_by_every_answer(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    await spine.db.run_tx(lambda tx: tickets.pause(tx, mine.id))

    assert (await spine.renew(mine)).stop is Stop.PAUSE
    assert (await spine.advance(mine, 1)).stop is Stop.PAUSE
    assert (await spine.release(mine, 2, await spine.now())).stop is Stop.PAUSE

    stored = await spine.read(mine.id)
    assert stored is not None and (stored.status, stored.stop) == (TaskStatus.PARKED, Stop.NONE)


async def test_a_pause_that_is_withdrawn_in_time_has_no_effect(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one()
    await spine.db.run_tx(lambda tx: tickets.pause(tx, mine.id))
    await spine.db.run_tx(lambda tx: tickets.resume(tx, mine.id, 0))

    assert (await spine.advance(mine)).stop is Stop.NONE


async def test_only_the_connection_that_broke_shortens_and_only_what_it_still_has(spine: Spine) -> None:
    await spine.schedule()
    mine = await spine.claim_one(ANNA)
    newer = Owner(ANNA.session_id, 2)
    await spine.renew(mine, newer)
    before = await spine.read(mine.id)

    late = await spine.submit(calls.Shorten(held(mine), ANNA, spine.times))
    returned = await spine.submit(calls.GiveBack(held(mine), ANNA))
    renewed = await spine.renew(mine, ANNA)

    assert {late.verdict, returned.verdict, renewed.verdict} == {Verdict.STALE}
    assert await spine.read(mine.id) == before

    await spine.submit(calls.Shorten(held(mine), newer, spine.times))
    await spine.pass_lease_time(6)
    assert [task.id for task in await spine.sweep()] == [mine.id]


async def test_what_was_never_delivered_goes_back_uncounted(spine: Spine) -> None:
    before = await spine.schedule()
    mine = await spine.claim_one(ANNA)

    await spine.submit(calls.GiveBack(held(mine), ANNA))

    again = await spine.claim_one(BEN)
    assert (again.reason, again.interruptions, again.run_at) == (Reason.RUN, 0, before.run_at)


async def test_leases_do_not_lapse_for_the_time_in_which_nobody_could_renew_them(spine: Spine) -> None:
    await spine.schedule("held")
    await spine.schedule("lost")
    alive = await spine.claim_one(ANNA)
    lost = await spine.claim_one(BEN)
    await spine.renew(alive)
    await spine.renew(lost)
    await spine.pass_lease_time(31)  # both are over, and the clock ticked: these lapse rightly
    await spine.renew(alive)  # this one was still in time

    await spine.pass_lease_time(600, ticking=False)  # then the database was away
    assert await spine.sweep() == []
    assert await spine.tick()
    swept = await spine.sweep()

    assert [task.id for task in swept] == [lost.id]
    assert (await spine.renew(alive)).verdict is Verdict.ACCEPTED


async def test_nor_do_those_that_nobody_could_acknowledge(spine: Spine) -> None:
    await spine.schedule()
    await spine.claim_one()
    await spine.tick()

    await spine.pass_lease_time(12, ticking=False)

    assert await spine.tick()
    assert await spine.sweep() == []


async def test_a_clock_that_is_set_back_leaves_nobody_a_longer_lease(spine: Spine) -> None:
    await spine.schedule()
    await spine.renew(await spine.claim_one())

    await spine.pass_lease_time(-3600, ticking=False)

    assert await spine.db.run_tx(lambda tx: leases.tick(tx, spine.times, rested_at=2**60))
    await spine.pass_lease_time(20)
    assert await spine.sweep() == []
    await spine.pass_lease_time(11)
    assert len(await spine.sweep()) == 1


async def test_without_a_recent_tick_nothing_is_swept(spine: Spine) -> None:
    await spine.schedule()
    await spine.claim_one()

    await spine.pass_lease_time(16, ticking=False)

    assert await spine.sweep() == []


async def test_a_limit_holds_however_many_claim_at_once(spine: Spine) -> None:
    limited = Handler("default", TaskKind.WORKFLOW, "limited")
    await spine.register(limited)
    for number in range(20):
        await spine.schedule(str(number), handler=limited, priority=number % 3)
    await spine.db.run_tx(lambda tx: limits.limit(tx, limited, concurrency=3))

    owners = [Owner(f"{n:032x}", 1) for n in range(10)]
    claims = await asyncio.gather(*(spine.claim(owner, 2, limited) for owner in owners))

    assert sum(map(len, claims)) == 3
    await spine.finish(next(task for claim in claims for task in claim))
    assert len(await spine.claim(ANNA, 5, limited)) == 1


async def test_a_lapsed_task_counts_against_the_limit_until_another_has_it(spine: Spine) -> None:
    limited = Handler("default", TaskKind.WORKFLOW, "limited")
    await spine.register(limited)
    for number in range(3):
        await spine.schedule(str(number), handler=limited)
    await spine.db.run_tx(lambda tx: limits.limit(tx, limited, concurrency=1))
    assert len(await spine.claim(ANNA, 5, limited)) == 1

    await spine.pass_lease_time(60)

    assert await spine.claim(BEN, 5, limited) == []


async def test_a_paused_handler_gives_nothing_and_its_tasks_are_not_touched(spine: Spine) -> None:
    await spine.schedule()
    await spine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=None, is_paused=True))
    before = await spine.rows()

    assert await spine.claim() == []
    assert await spine.rows() == before

    await spine.db.run_tx(lambda tx: limits.limit(tx, ORDER, concurrency=None))
    assert len(await spine.claim()) == 1


async def test_a_backlog_keeps_no_other_handler_waiting(spine: Spine) -> None:
    """What has begun goes first, then one task of each handler in turn."""
    calm, calmer = (Handler("default", TaskKind.WORKFLOW, name) for name in ("calm", "calmer"))
    await spine.register(calm, calmer)
    for number in range(20):
        await spine.schedule(f"crowd {number}")
    for handler in (calm, calmer):
        await spine.schedule(f"first of {handler.name}", handler=handler)
        await spine.schedule(f"second of {handler.name}", handler=handler)
    await spine.schedule("begun", priority=BEGUN_PRIORITY)

    claimed = await spine.claim(ANNA, 7, ORDER, calm, calmer)

    assert {task.key for task in claimed} == {
        "begun",
        *("crowd 0", "first of calm", "first of calmer"),
        *("crowd 1", "second of calm", "second of calmer"),
    }


@pytest.mark.parametrize("credits", [0, 3])
async def test_no_more_is_claimed_than_there_is_credit_for(spine: Spine, credits: int) -> None:
    other = Handler("default", TaskKind.WORKFLOW, "other")
    await spine.register(other)
    for number in range(10):
        await spine.schedule(str(number), priority=number % 3)
        await spine.schedule(str(number), priority=number % 3, handler=other)

    assert len(await spine.claim(ANNA, credits, ORDER, other)) == credits


async def test_only_served_names_are_handed_out(spine: Spine) -> None:
    await spine.schedule()

    assert await spine.claim(ANNA, 1, Handler("default", TaskKind.WORKFLOW, "other")) == []
    assert await spine.claim(ANNA, 1, Handler("elsewhere", TaskKind.WORKFLOW, "order")) == []
    assert await spine.claim(ANNA, 1, Handler("default", TaskKind.HOOK, "order")) == []


async def test_a_wake_does_not_send_what_is_due_to_the_end_of_the_queue(spine: Spine) -> None:
    first = await spine.schedule("first")
    await spine.schedule("second")

    await spine.submit(tickets.Wake(first.id, priority=first.priority))

    assert (await spine.claim_one()).key == "first"


@pytest.mark.parametrize("lost", [True, False], ids=["lapsed", "given back"])
async def test_a_pause_whose_holder_is_lost_takes_effect_and_a_resume_withdraws_it(spine: Spine, lost: bool) -> None:
    await spine.schedule()
    mine = await spine.claim_one(ANNA)
    await spine.db.run_tx(lambda tx: tickets.pause(tx, mine.id))

    if lost:
        await spine.pass_lease_time(11)
        await spine.sweep()
    else:
        await spine.submit(calls.GiveBack(held(mine), ANNA))
    assert await spine.claim(BEN) == []
    await spine.db.run_tx(lambda tx: tickets.resume(tx, mine.id, 0))

    theirs = await spine.claim_one(BEN)
    assert theirs.stop is Stop.NONE
