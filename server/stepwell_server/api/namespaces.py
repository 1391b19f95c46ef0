"""NamespaceService."""

from __future__ import annotations

from stepwell.v1 import namespaces_pb2 as pb
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceServicer
from stepwell_server.api.edge.calls import Context, asked_of, current
from stepwell_server.api.wire import namespaces as wire
from stepwell_server.domain.values.pages import PageRequest
from stepwell_server.engine.namespaces import Namespaces


class NamespaceServicer(NamespaceServiceServicer):
    """Translates between the wire and `engine.namespaces`."""

    def __init__(self, namespaces: Namespaces) -> None:
        self._namespaces = namespaces

    async def CreateNamespace(self, request: pb.CreateNamespaceRequest, context: Context) -> pb.CreateNamespaceResponse:
        spec = wire.namespace_spec_from_pb(request)
        namespace = await self._namespaces.create(spec, asked_of(request))
        return pb.CreateNamespaceResponse(namespace=wire.namespace_to_pb(namespace))

    async def ListNamespaces(self, request: pb.ListNamespacesRequest, context: Context) -> pb.ListNamespacesResponse:
        call = current.get()
        wanted = PageRequest(request.page_size, request.page_token)
        page = await self._namespaces.list(wanted, call.principal.name, call.allows)
        return pb.ListNamespacesResponse(
            namespaces=map(wire.namespace_to_pb, page.items), next_page_token=page.next_token
        )

    async def UpdateNamespace(self, request: pb.UpdateNamespaceRequest, context: Context) -> pb.UpdateNamespaceResponse:
        change = wire.namespace_spec_from_pb(request)
        namespace = await self._namespaces.update(change, request.update_mask.paths, asked_of(request))
        return pb.UpdateNamespaceResponse(namespace=wire.namespace_to_pb(namespace))
