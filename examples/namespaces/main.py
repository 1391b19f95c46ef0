"""Create a namespace, meet a refusal, list what is there.

python examples/namespaces/main.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys
from uuid import uuid4

from grpc import aio

from stepwell import failure_of, open_channel
from stepwell.v1 import namespaces_pb2 as pb
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub


async def main(server: str) -> None:
    async with open_channel(server) as channel:
        namespaces = NamespaceServiceStub(channel)
        name = f"example-{uuid4().hex[:8]}"
        request = pb.CreateNamespaceRequest(name=name, description="made by an example", request_id=str(uuid4()))
        await namespaces.CreateNamespace(request)
        await namespaces.CreateNamespace(request)  # the same request again: the same answer, done once

        try:
            await namespaces.CreateNamespace(pb.CreateNamespaceRequest(name=name))
        except aio.AioRpcError as error:
            print("refused:", failure_of(error).reason)

        for namespace in (await namespaces.ListNamespaces(pb.ListNamespacesRequest())).namespaces:
            print(namespace.name, "-", namespace.description)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7350"))
