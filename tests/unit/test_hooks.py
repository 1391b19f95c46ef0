"""Hooks: names and ids that are accepted, and what may be done with one that stands somewhere."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell_server.domain.hooks.hooks import (
    HOOK_RETRY,
    STORED,
    Hook,
    HookFilter,
    HookKey,
    HookStatus,
    NewHook,
    is_hook_name,
)
from stepwell_server.domain.spine.events import EVENT_PREFIXES
from stepwell_server.domain.spine.jobs import JobStatus
from stepwell_server.domain.values.errors import HookCompleted, HookEnded, InvalidHookId, InvalidHookName
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.times import MINUTE, SECOND

LETTERS = string.ascii_letters + string.digits


def new(name: str = "note", hook_id: str = "h") -> NewHook:
    return NewHook(HookKey("default", hook_id), name, Payload("{}"), "key")


def standing(status: HookStatus) -> Hook:
    return Hook(1, HookKey("default", "h"), "note", status, None, 1, HOOK_RETRY, "key", None, 0, 0, None, None, None)


@given(st.text(LETTERS + "_", min_size=1, max_size=1), st.text(LETTERS + "_.-", max_size=63))
def test_names_are_letters_digits_dashes_underscores_and_dots(first: str, rest: str) -> None:
    assert is_hook_name(first + rest)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "ä", "a\n", "\u0661", "a" * 65])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidHookName):
        new(name).check()


@pytest.mark.parametrize("prefix", EVENT_PREFIXES)
def test_names_of_the_engine_are_its_own(prefix: str) -> None:
    with pytest.raises(InvalidHookName):
        new(f"{prefix}completed").check()

    new(prefix.removesuffix(".")).check()
    new(f"my.{prefix}completed").check()


@pytest.mark.parametrize("hook_id", ["", "-a", "a.b", "a b", "ä", "a\n", "a" * 101])
def test_ids_that_cannot_be_are_refused(hook_id: str) -> None:
    with pytest.raises(InvalidHookId):
        new(hook_id=hook_id).check()


def test_the_longest_name_and_id_are_accepted() -> None:
    new("n" * 64, "i" * 100).check()


def test_the_default_policy_is_five_executions_from_a_second_to_a_minute() -> None:
    assert [HOOK_RETRY.allows_after(count) for count in (4, 5)] == [True, False]
    assert [HOOK_RETRY.delay_after(count) for count in (1, 2, 3, 4)] == [one * SECOND for one in (1, 2, 4, 8)]
    assert HOOK_RETRY.delay_after(60) == MINUTE


@pytest.mark.parametrize("status", HookStatus)
def test_only_what_was_executed_cannot_be_retried_and_only_what_ended_not_cancelled(status: HookStatus) -> None:
    hook = standing(status)

    if status is HookStatus.COMPLETED:
        with pytest.raises(HookCompleted):
            hook.check_can_retry()
    else:
        hook.check_can_retry()
    if status in (HookStatus.PENDING, HookStatus.PROCESSING):
        hook.check_can_cancel()
    else:
        with pytest.raises(HookEnded):
            hook.check_can_cancel()


def test_whether_a_hook_is_executing_is_not_stored() -> None:
    assert {status for status, stored in STORED.items() if stored is JobStatus.OPEN} == {
        HookStatus.PENDING,
        HookStatus.PROCESSING,
    }
    assert [status for status in HookStatus if status.ended is (STORED[status] is JobStatus.OPEN)] == []


def test_a_page_token_is_good_for_the_same_filter_in_whatever_order_it_was_said() -> None:
    one = HookFilter("default", "note", (HookStatus.FAILED, HookStatus.PENDING))
    same = HookFilter("default", "note", (HookStatus.PENDING, HookStatus.FAILED))
    others = [HookFilter("default", "note"), HookFilter("default", "", one.statuses), HookFilter("b", "note")]

    assert one.scope() == same.scope()
    assert all(one.scope() != other.scope() for other in others)
