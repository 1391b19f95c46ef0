"""Workflows as authors write them: names, types, and the app that gathers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import App, WorkflowDefinition, WorkflowEntrypoint, WorkflowEvent, WorkflowStep, workflow
from stepwell.v1.common_pb2 import Payload
from stepwell.workflows.definition import definition_of
from tests.sdk.stage import Stage, settle, task_of


@dataclass
class Params:
    sku: int


@dataclass
class Result:
    total: int


class Typed(WorkflowEntrypoint[Params, Result]):
    """Add things up.

    And more.
    """

    name = "typed"

    async def run(self, event: WorkflowEvent[Params], step: WorkflowStep) -> Result:
        return Result(event.payload.sku + 1)


class Hinted(WorkflowEntrypoint):  # type: ignore[type-arg]
    name = "hinted"

    async def run(self, event: WorkflowEvent[Params], step: WorkflowStep) -> Result:
        return Result(1)


@workflow("function")
async def function(event: WorkflowEvent[Params], step: WorkflowStep) -> Result:
    """A function."""
    return Result(event.payload.sku)


@pytest.mark.parametrize("form", [Typed, Hinted, function])
def test_every_form_can_name_its_types(form: Any) -> None:
    definition = definition_of(form)

    assert (definition.params_type, definition.result_type) == (Params, Result)


def test_the_first_line_of_the_docstring_describes_it() -> None:
    assert definition_of(Typed).description == "Add things up."
    assert definition_of(Hinted).description == ""
    assert function.description == "A function."


async def test_the_types_reach_the_function_and_its_output(stage: Stage) -> None:
    from stepwell.worker.run import Run

    definition = definition_of(Typed)
    run = Run(stage, definition, "x")
    run.attach(1, 1, task_of(params=Payload(json='{"sku":2}')))
    await settle()

    assert stage.take()[0].finish.output.json == '{"total":3}'


async def test_parameters_that_do_not_fit_fail_the_run(stage: Stage) -> None:
    from stepwell.worker.run import Run

    run = Run(stage, function, "x")
    run.attach(1, 1, task_of(params=Payload(json="[]")))
    await settle()

    assert stage.take()[0].finish.failure.name == "TypeError"


def named(name: Any) -> type[WorkflowEntrypoint[Any, Any]]:
    async def run(self: object, event: WorkflowEvent[Any], step: WorkflowStep) -> None: ...

    return type("Named", (WorkflowEntrypoint,), {"name": name, "run": run})


@pytest.mark.parametrize("name", ["a", "A-b_9", "_x", "9", "x" * 64])
def test_a_name_has_letters_digits_dashes_and_underscores(name: str) -> None:
    assert [name for _, name in App(workflows=[named(name)]).definitions] == [name]


@pytest.mark.parametrize("name", ["", "-a", "a b", "a.b", "a\n", "ä", "x" * 65])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="workflow name"):
        App(workflows=[named(name)])


def test_a_class_without_a_name_is_refused_by_the_name_of_the_class() -> None:
    class Nameless(WorkflowEntrypoint[Any, Any]):
        pass

    with pytest.raises(TypeError, match="Nameless"):
        App(workflows=[Nameless])


def test_so_is_one_that_does_nothing() -> None:
    class Idle(WorkflowEntrypoint[Any, Any]):
        name = "idle"

    with pytest.raises(TypeError, match=r"'idle' has no async def run\(self, event, step\)"):
        App(workflows=[Idle])


def test_the_decorator_wants_a_name() -> None:
    with pytest.raises(TypeError, match="write @workflow"):

        @workflow  # type: ignore[arg-type]
        async def nameless(event: Any, step: Any) -> None: ...


async def once() -> None: ...


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((lambda: 5,), "a step begins with its name"),
        (("ship", 5), "the step 'ship' needs a function, not 5"),
        (("ship", lambda: 1, lambda: 2), "the step 'ship' has one function, not 2"),
    ],
)
async def test_a_step_that_is_called_wrongly_says_how_it_is_called(
    stage: Stage, arguments: tuple[Any, ...], why: str
) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do(*arguments)

    await stage.begin(order)

    assert stage.take()[0].finish.failure.message.startswith(why)


async def test_a_step_is_given_a_function_and_not_what_it_returned(stage: Stage) -> None:
    async def order(event: Any, step: Any) -> None:
        await step.do("ship", once())

    await stage.begin(order)

    assert "write lambda: f(x), not f(x)" in stage.take()[0].finish.failure.message


def test_two_workflows_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'a'"):
        App(workflows=[named("a"), named("a")])


def test_what_is_not_a_workflow_is_refused() -> None:
    with pytest.raises(TypeError):
        App(workflows=["order"])  # type: ignore[list-item]


def test_the_decorator_gives_a_definition_and_registers_nothing() -> None:
    assert isinstance(function, WorkflowDefinition)
    with pytest.raises(RuntimeError, match="no client"):
        Typed().workflow("other")


def test_a_workflow_that_is_not_async_or_yields_is_refused_where_it_is_written() -> None:
    def plain(event: Any, step: Any) -> None: ...

    async def generator(event: Any, step: Any) -> Any:
        yield

    for function in (plain, generator):
        with pytest.raises(TypeError, match="'order' is not async"):
            workflow("order")(function)  # type: ignore[type-var]


def test_a_class_whose_run_is_not_async_is_refused_when_it_is_registered() -> None:
    class Order(WorkflowEntrypoint[Any, Any]):
        name = "order"

        def run(self, event: Any, step: Any) -> Any:  # type: ignore[override]
            return None

    with pytest.raises(TypeError, match="'order' is not async"):
        App(workflows=[Order])
