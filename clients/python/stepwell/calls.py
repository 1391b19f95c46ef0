"""The calls that a handle makes through its client, one by one or together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from grpc import aio

from stepwell.v1.errors_pb2 import ItemError

PAGE = 100
"""Entries of one page of a list."""


class Result(Protocol):
    """The answer to one item of a batch."""

    @property
    def error(self) -> ItemError:
        """Why it was refused; empty if it was not."""


StubT = TypeVar("StubT")
AnswerT = TypeVar("AnswerT")
ItemT = TypeVar("ItemT", bound=Message)
ResultT = TypeVar("ResultT", bound=Result)


class Caller(Protocol):
    """The client, as its handles see it."""

    @property
    def namespace(self) -> str:
        """The namespace of all calls."""

    @property
    def timeout(self) -> float:
        """Seconds that a call may take, unless it says otherwise."""

    def stub(self, service: Callable[[aio.Channel], StubT]) -> StubT:
        """The generated stub of a service."""

    async def call(
        self, method: Callable[..., Awaitable[AnswerT]], request: Message, seconds: float | None = None
    ) -> AnswerT:
        """The answer of a call, within so many seconds or the client's timeout. CallFailed if it was refused."""

    async def submit(self, batch: Batch[ItemT, ResultT], item: ItemT) -> ResultT:
        """The answer to one item, which travels with others that are submitted meanwhile."""

    async def submit_all(self, batch: Batch[ItemT, ResultT], items: Sequence[ItemT]) -> list[ResultT]:
        """The answers to many items, in as few calls as the server's bounds allow."""


Batch: TypeAlias = Callable[[Caller, Sequence[ItemT], float], Awaitable[Sequence[ResultT]]]
"""Sends items, each of which carries its request_id, within so many seconds; answers one by one."""


async def pages(call: Callable[[Any], Awaitable[AnswerT]], request: Any) -> AsyncIterator[AnswerT]:
    """The pages of a list, from the first to the last. The request may be changed between two of them."""
    while True:
        page: Any = await call(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token
