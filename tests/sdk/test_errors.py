"""What is stored of an exception, and what it comes back as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc import aio

from stepwell import NonRetryableError, StepFailed
from stepwell.errors import failure_of, from_failure, to_failure
from stepwell.v1.common_pb2 import Failure


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Described(Exception):
    @property
    def message(self) -> str:
        return "of the class"


@dataclass(frozen=True)
class Declared(Exception):
    message: str


class Counted(Exception):
    def __new__(cls, number: int) -> Counted:
        return super().__new__(cls)


class Sealed(Exception):
    def __init_subclass__(cls) -> None:
        raise LookupError("no children")


class Named(StepFailed):
    @property
    def message(self) -> str:
        return "fixed"

    @message.setter
    def message(self, value: str) -> None:
        raise LookupError("not to be set")


def test_an_error_that_cannot_say_what_it_is_about_keeps_its_name() -> None:
    failure = to_failure(Speechless())

    assert (failure.name, failure.message) == ("Speechless", "<Speechless that cannot say what it is about>")


def test_a_group_tells_what_its_members_say() -> None:
    inner = ExceptionGroup("inner", [KeyError("k")])

    failure = to_failure(ExceptionGroup("outer", [ValueError("v"), inner]))

    told = "outer (2 sub-exceptions): ValueError: v; ExceptionGroup: inner (1 sub-exception): KeyError: 'k'"
    assert (failure.name, failure.message) == ("ExceptionGroup", told)


def raised(error: BaseException, depth: int = 0) -> BaseException:
    def even(left: int) -> None:
        odd(left - 1) if left else at_the_bottom()

    def odd(left: int) -> None:
        even(left - 1)

    def at_the_bottom() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        even(depth)
    return caught.value


def test_a_failure_says_where_it_was_raised() -> None:
    details = to_failure(raised(ValueError("no stock"))).details

    assert "in at_the_bottom" in details and details.endswith("ValueError: no stock\n")


@pytest.mark.parametrize("error", [raised(ValueError("a" * 10_000 + "z" * 10_000)), raised(ValueError("z"), 400)])
def test_of_a_long_stack_both_ends_are_kept(error: ValueError) -> None:
    details = to_failure(error).details

    assert len(details) <= 16_384
    assert details.startswith("Traceback") and details.endswith("z\n")


@pytest.mark.parametrize("error", [ValueError("never raised"), raised(Speechless())])
def test_an_error_without_a_stack_or_words_is_told_as_well(error: Exception) -> None:
    assert "never raised" not in to_failure(error).details


@pytest.mark.parametrize(("name", "stored"), [("a\0b", "ab"), ("\ud800", "?"), (402, "402"), ("x" * 300, "x" * 256)])
def test_a_name_is_text_that_the_wire_accepts(name: Any, stored: str) -> None:
    assert to_failure(NonRetryableError("no money", name)).name == stored


@pytest.mark.parametrize("cls", [Described, Declared, KeyError, OSError, UnicodeDecodeError])
def test_a_stored_failure_is_caught_as_what_it_was(cls: type[Exception]) -> None:
    error = from_failure(Failure(name=cls.__name__, message="as stored"))

    assert isinstance(error, cls)
    assert (error.name, error.message, str(error)) == (cls.__name__, "as stored", "as stored")


@pytest.mark.parametrize("cls", [Counted, Sealed, Named, StopIteration])
def test_a_class_that_has_no_stand_in_comes_back_as_a_failed_step(cls: type[Exception]) -> None:
    error = from_failure(Failure(name=cls.__name__, message="as stored"))

    assert type(error) is StepFailed
    assert (error.name, error.message, str(error)) == (cls.__name__, "as stored", "as stored")


@pytest.mark.parametrize(("domain", "reason"), [("stepwell.v1", "NAMESPACE_NOT_FOUND"), ("proxy.example", "")])
def test_a_failed_call_has_a_reason_only_of_a_stepwell_server(domain: str, reason: str) -> None:
    status = Status(message="refused")
    status.details.add().Pack(ErrorInfo(reason="NAMESPACE_NOT_FOUND", domain=domain))
    told = aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))

    failure = failure_of(aio.AioRpcError(grpc.StatusCode.NOT_FOUND, aio.Metadata(), told, "refused"))

    assert (failure.reason, failure.message) == (reason, "refused")
