"""TransactionService."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.v1 import transactions_pb2 as pb
from stepwell.v1.transactions_pb2_grpc import TransactionServiceServicer
from stepwell_server.api.edge.access import Category
from stepwell_server.api.edge.calls import Call, Context, asked_of, current
from stepwell_server.api.hooks import new_hook
from stepwell_server.api.wire import common as convert
from stepwell_server.api.wire import hooks, workflows
from stepwell_server.api.workflows import new_event, new_instance, stored_to_pb
from stepwell_server.domain.hooks.hooks import Hook
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.workflows.instances import Instance
from stepwell_server.engine.transactions import Transactions, named
from stepwell_server.engine.workflows.calls import Stored

_CATEGORIES = {
    "create_instance": Category.CREATE,
    "send_event": Category.EVENT,
    "trigger_hook": Category.CREATE,
}
"""The permission that each kind of operation needs."""


class TransactionServicer(TransactionServiceServicer):
    """Translates between the wire and `engine.transactions`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        _permit(current.get(), namespace, request.operations)
        operations = [_readable(namespace, number, one) for number, one in enumerate(request.operations)]
        asked = asked_of(request)
        del request  # all of it is in the operations, and payloads are large
        done = await self._transactions.commit(namespace, operations, asked)
        return pb.CommitResponse(results=map(_result, done))


def _permit(call: Call, namespace: str, operations: Sequence[pb.Operation]) -> None:
    """Refuse the first operation that its caller may not do; a transaction without any as one that creates."""
    if not operations:
        call.permit(namespace)
    for number, one in enumerate(operations):
        try:
            call.permit(namespace, _CATEGORIES.get(one.WhichOneof("operation") or ""))
        except StepwellError as refusal:
            raise named(refusal, number) from None


def _readable(namespace: str, number: int, one: pb.Operation) -> object:
    try:
        return _operation(namespace, one)
    except StepwellError as refusal:
        raise named(refusal, number) from None


def _operation(namespace: str, operation: pb.Operation) -> object:
    named = operation.WhichOneof("operation")
    if named is None:
        raise InvalidField(f"operation is empty: set one of {', '.join(_OPERATIONS)}", field="operations")
    return _OPERATIONS[named](namespace, getattr(operation, named))


_OPERATIONS: Mapping[str, Callable[[str, Any], object]] = {
    "create_instance": new_instance,
    "send_event": new_event,
    "trigger_hook": new_hook,
}

_RESULTS: Mapping[type, Callable[[Any], pb.OperationResult]] = {
    Instance: lambda done: pb.OperationResult(instance=workflows.instance_to_pb(done, payloads=False)),
    Stored: lambda done: pb.OperationResult(event=stored_to_pb(done)),
    Hook: lambda done: pb.OperationResult(hook=hooks.hook_to_pb(done)),
}


def _result(done: object) -> pb.OperationResult:
    return _RESULTS[type(done)](done)
