"""Two tenants of one server: what one of them has, and how answers to the other are compared."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field, fields
from typing import Any
from uuid import uuid4

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from grpc import aio
from sqlalchemy import Table, select

from stepwell.errors import failure_of
from stepwell.v1 import hooks_pb2, namespaces_pb2, transactions_pb2, workers_pb2, workflows_pb2
from stepwell_server.storage import schema
from stepwell_server.storage.database.database import Tx
from tests.support.calls.contract import methods
from tests.support.calls.triggers import item
from tests.support.servers.policies import known_as
from tests.support.servers.servers import Served
from tests.support.workers.frames import done, finish, payload, returned, suspend, wait_for
from tests.support.workers.workers import HandWorker, Job

ADMIN = known_as("admin", "*@*")
ANN = known_as("ann", "*@a")
BOB = known_as("bob", "*@b")
CARL = known_as("carl", "*@b")
"""Another worker of Bob's namespace."""

LEASES = {"lease": 600, "ack_window": 600}
"""So long that none lapses in a test."""


@dataclass
class Things:
    """What somebody knows of another tenant, or has made up: the names by which things are asked for."""

    namespace: str
    workflow: str
    instance_id: str
    hook_id: str
    hook_name: str
    request_id: str
    session_id: str
    """Of a worker with a stream."""
    calling_session_id: str
    """Of a worker that calls."""
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Task and fence, by what became of the task."""
    page_tokens: dict[str, str] = field(default_factory=dict)

    def echo(self, key: str, value: str) -> str:
        """What the value of a field is, if it is one that the caller said; else the value."""
        if key.lower().replace("_", "") in ("taskid", "fence"):
            told = {str(one): "said" for lease in self.leases.values() for one in lease}
        else:
            told = {str(getattr(self, one.name)): one.name for one in fields(self) if one.type == "str"}
        return told.get(value, value)


def made_up(like: Things) -> Things:
    """Things that nobody has."""
    return Things(
        *(f"none-{one}" for one in ("space", "flow", "order", "hook", "hook-name", "request")),
        session_id=uuid4().hex,
        calling_session_id=uuid4().hex,
        leases={kind: (10**12 + number, 10**13 + number) for number, kind in enumerate(like.leases)},
        page_tokens=dict.fromkeys(like.page_tokens, "c" * 44),
    )


# ---- Bob


@dataclass
class Bob:
    """A tenant whose namespace has one of everything."""

    server: Served
    worker: HandWorker
    things: Things

    async def call(self, name: str, request: Message) -> Any:
        """Call a method."""
        return await methods()[name].first(self.server.channel, request, metadata=BOB)

    async def settle(self) -> None:
        """Come to have it all."""
        jobs = {name: await self._taken(name) for name in ("held", "waiting", "ended", "ended-by-others")}
        await jobs["held"].report(done("first"))
        await jobs["waiting"].report(done("first"), wait_for("more", "go"), suspend())
        await jobs["ended"].report(finish())
        await self.call("TerminateInstance", workflows_pb2.TerminateInstanceRequest(**self._key("ended-by-others")))
        await jobs["ended-by-others"].stale()
        await self.call("TriggerHooks", hooks_pb2.TriggerHooksRequest(namespace="b", items=[self._hook("sent")]))
        jobs["sent"] = await self.worker.take()
        await jobs["sent"].report(returned())
        self.things.leases = {name: (job.task_id, job.fence) for name, job in jobs.items()}
        await self._claim()
        for number in (1, 2):  # one without a worker, so that lists have a second page
            hook = hooks_pb2.TriggerHooksItem(name="unserved", hook_id=f"later-{number}")
            await self.call("TriggerHooks", hooks_pb2.TriggerHooksRequest(namespace="b", items=[hook]))
            target = {"name": f"target-{number}", "url": "https://receiver.example.com/in"}
            request_id = self.things.request_id if number == 1 else ""
            put = hooks_pb2.PutHookTargetRequest(namespace="b", **target, request_id=request_id)
            await self.call("PutHookTarget", put)
        operation = transactions_pb2.Operation(trigger_hook=item("committed", "unserved"))
        commit = {"operations": [operation], "request_id": self.things.request_id}
        await self.call("Commit", transactions_pb2.CommitRequest(namespace="b", **commit))
        await self._turn_pages()

    def _key(self, instance_id: str) -> dict[str, Any]:
        return {"namespace": "b", "workflow": self.things.workflow, "instance_id": instance_id}

    def _hook(self, hook_id: str) -> hooks_pb2.TriggerHooksItem:
        return item(hook_id, self.things.hook_name, request_id=f"{self.things.request_id}-{hook_id}")

    async def _taken(self, instance_id: str) -> Job:
        request = workflows_pb2.CreateInstanceRequest(**self._key(instance_id), params=payload('"private"'))
        if instance_id == self.things.instance_id:
            request.request_id = self.things.request_id
        await self.call("CreateInstance", request)
        return await self.worker.take()

    async def _claim(self) -> None:
        """Take an instance by a call that can be repeated."""
        session_id = self.things.calling_session_id
        hello = HandWorker(self.server.channel, ("calls",), session_id=session_id, namespace="b").hello()
        await self.call("RegisterHandlers", workers_pb2.RegisterHandlersRequest(hello=hello))
        created = workflows_pb2.CreateInstanceRequest(namespace="b", workflow="calls", params=payload('"private"'))
        await self.call("CreateInstance", created)
        claim = workers_pb2.ClaimTasksRequest(namespace="b", session_id=session_id, request_id=self.things.request_id)
        (frame,) = (await self.call("ClaimTasks", claim)).frames
        self.things.leases["claimed"] = (frame.task_id, frame.fence)

    async def _turn_pages(self) -> None:
        of_one = {"ListInstances": {"workflow": self.things.workflow}, "GetHistory": self._key("waiting")}
        for method in methods().values():
            if "page_token" in method.request.DESCRIPTOR.fields_by_name and method.name != "ListNamespaces":
                about = {"namespace": "b", "page_size": 1, **of_one.get(method.name, {})}
                page = await self.call(method.name, method.request(**about))
                assert page.next_page_token, f"{method.name} has one page only"
                self.things.page_tokens[method.name] = page.next_page_token
        everybody = namespaces_pb2.ListNamespacesRequest(page_size=1)
        page = await methods()["ListNamespaces"].first(self.server.channel, everybody, metadata=ADMIN)
        self.things.page_tokens["ListNamespaces"] = page.next_page_token

    async def stored(self) -> dict[str, list[Any]]:
        """All that is stored of the namespace, but for when its workers were last seen."""

        def work(tx: Tx) -> dict[str, list[Any]]:
            tables = [one for one in schema.metadata.sorted_tables if "namespace" in one.c]
            return {one.name: _rows(tx, one) for one in tables}

        return await self.server.app.db.run_tx(work)


def _rows(tx: Tx, table: Table) -> list[Any]:
    columns = [one for one in table.c if one.name != "seen_at"]
    statement = select(*columns).where(table.c.namespace == "b").order_by(*table.primary_key.columns)
    return [tuple(row) for row in tx.execute(statement)]


async def open_namespaces(channel: aio.Channel, *names: str) -> None:
    """Add namespaces."""
    create = methods()["CreateNamespace"]
    for name in names:
        await create.first(channel, namespaces_pb2.CreateNamespaceRequest(name=name), metadata=ADMIN)


# ---- answers


async def outcome(call: Awaitable[Message], things: Things) -> Any:
    """What a caller learns: the answer or the refusal, with what it said itself left out."""
    try:
        return plain(await call, things)
    except aio.AioRpcError as error:
        failure = failure_of(error)
        return [failure.code.name, failure.reason, failure.message, _plain(failure.metadata, things)]


def plain(message: Message, things: Things) -> Any:
    """A message without times, without new ids, and without what the caller said itself."""
    return _plain(MessageToDict(message), things)


def _plain(value: Any, things: Things, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _plain(one, things, name) for name, one in value.items() if not _is_passing(name, value)}
    if isinstance(value, list):
        return [_plain(one, things, key) for one in value]
    return things.echo(key, value) if isinstance(value, str) else value


def _is_passing(name: str, among: dict[str, Any]) -> bool:
    """Whether it differs from call to call; as the number of a wake, which counts what its replica does for anybody."""
    counts = name == "number" and "replicaId" in among
    return counts or name.endswith("At") or name in {"now", "leaseNow", "idempotencyKey", "position", "revision"}
