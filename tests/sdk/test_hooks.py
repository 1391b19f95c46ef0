"""Hooks as authors write them: names, signatures, types, and the app that gathers them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from stepwell import App, Client, HookDefinition, JobContext, Retry, Worker, hook, workflow


@dataclass
class Receipt:
    order: int


class Model(BaseModel):
    order: int


class Sender:
    async def send(self, payload: Receipt, ctx: JobContext) -> None: ...

    def __call__(self, payload: Receipt) -> None: ...


async def typed(payload: Receipt, ctx: JobContext) -> None:
    """Send a receipt.

    And more.
    """


def defined(function: Any) -> HookDefinition[Any]:
    return hook("send-receipt")(function)


def test_a_hook_is_a_definition_and_registers_nothing() -> None:
    definition = hook("send-receipt")(typed)

    assert (definition.name, definition.description) == ("send-receipt", "Send a receipt.")
    assert App().definitions == {}
    assert [name for _, name in App(hooks=[definition]).definitions] == ["send-receipt"]


async def test_a_definition_can_be_called_like_its_function() -> None:
    assert defined(lambda payload: payload + 1)(1) == 2


@pytest.mark.parametrize(
    ("function", "takes"),
    [
        (lambda payload: None, False),
        (lambda payload, ctx: None, True),
        (lambda payload, /, ctx: None, True),
        (lambda *args: None, True),
        (lambda payload, number=3: None, False),
        (lambda payload, *, number=3: None, False),
        (lambda payload, **rest: None, False),
        (functools.partial(lambda kept, payload: None, 1), False),
        (functools.partial(lambda kept, payload, ctx: None, 1), True),
        (Sender().send, True),
        (Sender(), False),
        (print, True),
    ],
)
def test_the_signature_says_whether_the_context_is_wanted(function: Any, takes: bool) -> None:
    assert defined(function).handler.takes_context is takes


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda a, b, c: None, lambda payload, *, needed: None, lambda *, payload: None, "send"],
)
def test_what_cannot_be_called_with_a_payload_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="payload"):
        defined(function)


@pytest.mark.parametrize("function", [typed, Sender().send, Sender()])
def test_the_payload_has_the_type_that_the_first_parameter_names(function: Any) -> None:
    assert defined(function).handler.payload_type is Receipt


def test_a_type_that_is_not_named_or_not_found_is_plain_json() -> None:
    @dataclass
    class Local:
        order: int

    def local(payload: Local) -> None: ...

    assert defined(local).handler.payload_type is None
    assert defined(lambda payload: None).handler.payload_type is None


@pytest.mark.parametrize("name", ["send-receipt", "_", "workflow.completed", "a" * 64])
def test_names_that_can_be(name: str) -> None:
    assert hook(name)(typed).name == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a" * 65, "ä", 7])
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises(ValueError, match="hook name"):
        hook(name)


def test_two_hooks_of_one_name_are_refused_also_across_app_and_worker() -> None:
    with pytest.raises(ValueError, match="two hooks of this app are called 'send-receipt'"):
        App(hooks=[defined(typed), defined(typed)])
    with pytest.raises(ValueError, match="send-receipt"):
        Worker(Client(), App(hooks=[defined(typed)]), hooks=[defined(typed)])


@dataclass(frozen=True)
class WiderApp(App):
    """An app with definitions that the worker has no argument for."""

    tickets: tuple[str, ...] = ()


def test_a_worker_hosts_all_that_its_app_has() -> None:
    hosted = Worker(Client(), WiderApp(tickets=("one",)), hooks=[defined(typed)]).app

    assert isinstance(hosted, WiderApp) and hosted.tickets == ("one",)
    assert hosted.names == ["send-receipt (hook)"]


def test_a_hook_and_a_workflow_may_have_one_name() -> None:
    @workflow("send-receipt")
    async def program(event: Any, step: Any) -> None: ...

    assert App(workflows=[program], hooks=[defined(typed)]).names == ["send-receipt", "send-receipt (hook)"]


def test_a_plain_function_is_no_hook() -> None:
    with pytest.raises(TypeError, match="@hook"):
        App(hooks=[typed])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="@hook"):
        Client().hook(typed)  # type: ignore[call-overload]


def test_a_definition_keeps_its_policy() -> None:
    policy = Retry(max_attempts=3, is_retryable=lambda error: not isinstance(error, LookupError))
    definition = hook("send-receipt", retry=policy)(typed)

    assert definition.retry is policy
    assert definition.outcome_of(LookupError()).failure.non_retryable
    assert not definition.outcome_of(OSError()).failure.non_retryable
    assert not defined(typed).outcome_of(LookupError()).failure.non_retryable


def test_a_generator_is_no_handler() -> None:
    def generator(payload: Any) -> Any:
        yield

    async def async_generator(payload: Any) -> Any:
        yield

    for function in (generator, async_generator):
        with pytest.raises(TypeError, match="does not yield"):
            hook("note")(function)
