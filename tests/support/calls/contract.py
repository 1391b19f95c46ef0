"""The contract as its descriptors tell it: every method, callable by its path."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Method:
    """One method of one service."""

    descriptor: Any

    @property
    def name(self) -> str:
        """Its name, which no other service uses."""
        return str(self.descriptor.name)

    @property
    def path(self) -> str:
        """What gRPC calls it by."""
        return f"/{self.descriptor.containing_service.full_name}/{self.name}"

    @property
    def request(self) -> type[Message]:
        """What it takes."""
        return GetMessageClass(self.descriptor.input_type)

    def open(self, channel: aio.Channel, *requests: Message, metadata: Any = None) -> Any:
        """Call it: the answer to await, or the stream to read."""
        shape = f"{_arity(self.descriptor.client_streaming)}_{_arity(self.descriptor.server_streaming)}"
        respond = GetMessageClass(self.descriptor.output_type).FromString
        call = getattr(channel, shape)(self.path, self.request.SerializeToString, respond)
        if not self.descriptor.client_streaming:
            return call(*requests, metadata=metadata)

        async def said() -> Any:
            for one in requests:
                yield one

        return call(said(), metadata=metadata)

    async def first(self, channel: aio.Channel, *requests: Message, metadata: Any = None) -> Any:
        """Its answer, or the first one of a stream."""
        call = self.open(channel, *requests, metadata=metadata)
        return await (call.read() if self.descriptor.server_streaming else call)


def methods() -> dict[str, Method]:
    """Every method of the contract, by its name."""
    stems = [path.stem for path in (ROOT / "proto/stepwell/v1").glob("*.proto")]
    found = [
        Method(method)
        for stem in stems
        for service in import_module(f"stepwell.v1.{stem}_pb2").DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]
    assert len({one.name for one in found}) == len(found), "names of methods are used once"
    return {one.name: one for one in found}


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"
