"""TransactionService."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.v1 import transactions_pb2 as pb
from stepwell.v1.transactions_pb2_grpc import TransactionServiceServicer
from stepwell_server.api.edge.access import Category
from stepwell_server.api.edge.calls import Call, Context, current, request_of
from stepwell_server.api.hooks import new_hook
from stepwell_server.api.wire import common as convert
from stepwell_server.api.workflows import new_event, new_instance, stored_to_pb
from stepwell_server.domain.hooks.hooks import Hook
from stepwell_server.domain.values.errors import InvalidField, StepwellError
from stepwell_server.domain.workflows.instances import Instance
from stepwell_server.engine.transactions import Done, Operation, Transactions, named
from stepwell_server.engine.workflows.calls import Stored

_CATEGORIES = {
    "create_instance": Category.CREATE,
    "send_event": Category.EVENT,
    "trigger_hook": Category.CREATE,
}
"""What a caller must be allowed to, by the kind of operation."""


class TransactionServicer(TransactionServiceServicer):
    """Translates between the wire and `engine.transactions`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def Commit(self, request: pb.CommitRequest, context: Context) -> pb.CommitResponse:
        namespace = convert.namespace_from_pb(request.namespace)
        _permit(current.get(), namespace, request.operations)
        operations = [_readable(namespace, number, one) for number, one in enumerate(request.operations)]
        done = await self._transactions.commit(namespace, operations, request_of(request))
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


def _readable(namespace: str, number: int, one: pb.Operation) -> Operation:
    try:
        return _operation(namespace, one)
    except StepwellError as refusal:
        raise named(refusal, number) from None


def _operation(namespace: str, one: pb.Operation) -> Operation:
    match one.WhichOneof("operation"):
        case "create_instance":
            return new_instance(namespace, one.create_instance)
        case "send_event":
            return new_event(namespace, one.send_event)
        case "trigger_hook":
            return new_hook(namespace, one.trigger_hook)
        case _:
            raise InvalidField("say what to do", field="operations")


def _result(done: Done) -> pb.OperationResult:
    match done:
        case Instance():
            return pb.OperationResult(instance=convert.instance_to_pb(done, payloads=False))
        case Stored():
            return pb.OperationResult(event=stored_to_pb(done))
        case Hook():
            return pb.OperationResult(hook=convert.hook_to_pb(done))
