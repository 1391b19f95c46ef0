"""Transaction: operations that are gathered in a `with` block and done as one, all of them or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

from stepwell.errors import CallFailed, TransactionRefused
from stepwell.hooks.definition import HookDefinition
from stepwell.hooks.handle import Hook, NewHook, TriggeredHook, hooks_of, trigger_item
from stepwell.request_ids import identified
from stepwell.retry import Retry
from stepwell.v1 import transactions_pb2 as pb
from stepwell.v1.transactions_pb2_grpc import TransactionServiceStub
from stepwell.workflows.definition import AnyWorkflow, WorkflowDefinition, WorkflowEntrypoint, workflow_of
from stepwell.workflows.handle import Instance, NewInstance, Workflow, WorkflowCaller, create_item, event_item

P = TypeVar("P")
R = TypeVar("R")


class Transaction:
    """Operations that are done together: `async with client.transaction() as tx:`.

    In the block `tx.hook(...)` and `tx.workflow(...)` gather what is to be done, without `await`. At its end all of it
    is done in one transaction of the server, or nothing if one operation is refused (`TransactionRefused` says which
    one) or the block raises. The handles that they return are of use after the block.
    """

    def __init__(self, client: WorkflowCaller) -> None:
        self._client = client
        self._operations: list[pb.Operation] | None = None
        self._is_used = False

    async def __aenter__(self) -> Transaction:
        if self._is_used:
            raise RuntimeError("a transaction is used once: make another one")
        self._is_used, self._operations = True, []
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        operations, self._operations = self._operations, None
        if operations and kind is None:
            await self._commit(operations)

    @overload
    def hook(self, hook: HookDefinition[P]) -> HookOperations[P]: ...
    @overload
    def hook(self, hook: str) -> HookOperations[Any]: ...
    def hook(self, hook: HookDefinition[Any] | str) -> HookOperations[Any]:
        """A hook inside a transaction, with `trigger`."""
        return HookOperations(self, hooks_of(self._client, hook))

    @overload
    def workflow(self, workflow: type[WorkflowEntrypoint[P, R]]) -> WorkflowOperations[P, R]: ...
    @overload
    def workflow(self, workflow: WorkflowDefinition[P, R]) -> WorkflowOperations[P, R]: ...
    @overload
    def workflow(self, workflow: str) -> WorkflowOperations[Any, Any]: ...
    def workflow(self, workflow: AnyWorkflow | str) -> WorkflowOperations[Any, Any]:
        """A workflow inside a transaction, with `create` and `get(id).send_event`."""
        return WorkflowOperations(self, workflow_of(self._client, workflow))

    def add(self, operation: pb.Operation) -> None:
        """Do this as well. RuntimeError outside of the block."""
        if self._operations is None:
            raise RuntimeError("a transaction gathers operations inside of its `async with` block")
        self._operations.append(operation)

    async def _commit(self, operations: list[pb.Operation]) -> None:
        request = identified(pb.CommitRequest(namespace=self._client.namespace, operations=operations))
        try:
            await self._client.call(self._client.stub(TransactionServiceStub).Commit, request)
        except CallFailed as failure:
            if "operation" in failure.metadata:
                raise TransactionRefused(failure) from None
            raise


@dataclass(frozen=True, slots=True)
class HookOperations(Generic[P]):
    """Hooks of a name, inside of a transaction."""

    transaction: Transaction
    accessor: Hook[P]

    def trigger(
        self,
        payload: P | None = None,
        *,
        process_at: datetime | None = None,
        retry: Retry | None = None,
        id: str | None = None,
    ) -> TriggeredHook:
        """Store a hook with the transaction, as `client.hook(...).trigger` does."""
        new = NewHook(payload=payload, id=id, process_at=process_at, retry=retry)
        item = trigger_item(self.accessor.name, new, self.accessor.retry)
        item.hook_id = item.hook_id or item.request_id
        self.transaction.add(pb.Operation(trigger_hook=item))
        return TriggeredHook(self.accessor.client, self.accessor.name, item.hook_id)


@dataclass(frozen=True, slots=True)
class WorkflowOperations(Generic[P, R]):
    """A workflow, inside of a transaction."""

    transaction: Transaction
    accessor: Workflow[P, R]

    def create(
        self, id: str | None = None, params: P | None = None, labels: Mapping[str, str] | None = None
    ) -> Instance[R]:
        """Start an instance with the transaction. An id that exists refuses the whole of it."""
        item = create_item(self.accessor.name, NewInstance(id=id, params=params, labels=labels))
        item.instance_id = item.instance_id or item.request_id
        self.transaction.add(pb.Operation(create_instance=item))
        return Instance(self.accessor.client, self.accessor.name, item.instance_id, self.accessor.result_type)

    def get(self, id: str) -> InstanceOperations:
        """An instance inside a transaction, which may be the one to create it."""
        return InstanceOperations(self.transaction, self.accessor.name, id)


@dataclass(frozen=True, slots=True)
class InstanceOperations:
    """An instance, inside of a transaction."""

    transaction: Transaction
    workflow: str
    id: str

    def send_event(self, type: str, payload: Any = None) -> None:
        """Send an event with the transaction."""
        item = event_item(self.workflow, self.id, type, payload)
        self.transaction.add(pb.Operation(send_event=item))
