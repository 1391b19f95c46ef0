"""What the policy is asked: about which category, in which namespace, for which operation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell.errors import reason_name
from stepwell.v1 import namespaces_pb2, transactions_pb2, workers_pb2, workflows_pb2
from stepwell.v1.namespaces_pb2_grpc import NamespaceServiceStub
from stepwell_server.api.edge.access import (
    METHODS,
    AllowAll,
    Caller,
    Category,
    PolicyNotFound,
    Principal,
    load_policy,
)
from tests.api.conftest import Hire
from tests.support.calls.contract import Method, methods
from tests.support.calls.errors import refusal
from tests.support.calls.flows import Flows
from tests.support.calls.triggers import item as hook_item
from tests.support.patience import PATIENCE
from tests.support.servers.policies import all_but, known_as
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.workers import HandWorker

HERE = "tests.api.test_permissions"


class Curious(AllowAll):
    """Says no to everybody, and remembers what it was asked."""

    asked: set[tuple[Category, str]] = set()

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        self.asked.add((category, namespace))
        return False


class Noting(AllowAll):
    """Says yes to everybody, and remembers what it was asked."""

    asked: list[tuple[Category, str]] = []

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        self.asked.append((category, namespace))
        return True


class Vague(AllowAll):
    """Answers with something that is true, and not yes."""

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        return "yes"  # type: ignore[return-value]


class Asynchronous(AllowAll):
    """Would answer later."""

    async def allows(self, principal: Principal, category: Category, namespace: str) -> bool:  # type: ignore[override]
        return False


class Later:
    """An object that answers later."""

    async def __call__(self, principal: Principal, category: Category, namespace: str) -> bool:
        return False


class AsynchronousObject:
    """Would answer later, by an object."""

    allows = Later()

    async def authenticate(self, caller: Caller) -> Principal:
        return Principal("somebody")


@pytest.mark.parametrize("name", ["Asynchronous", "AsynchronousObject"])
def test_a_policy_that_would_answer_later_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(PolicyNotFound, match=f"{name}: it needs .*`def allows`"):
        load_policy(f"{HERE}:{name}")


async def test_only_true_is_a_yes(start_server: StartServer, sqlite_url: str) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:Vague")

    error = await refusal(Flows(server.channel).stub.ListWorkflows(workflows_pb2.ListWorkflowsRequest()))

    assert error.reason == "PERMISSION_DENIED"


# ---- which namespace


def about(method: Method, namespace: str) -> Any:
    """A request of that method about a namespace, however it is said."""
    match method.name:
        case "Connect":
            hello = HandWorker(None, namespace=namespace).hello()  # type: ignore[arg-type]
            return workers_pb2.ConnectRequest(frames=[workers_pb2.WorkerFrame(hello=hello)])
        case "RegisterHandlers":
            return workers_pb2.RegisterHandlersRequest(hello=workers_pb2.Hello(namespace=namespace))
        case "WatchInstances":
            return workflows_pb2.WatchInstancesRequest(add=[workflows_pb2.WatchTarget(namespace=namespace)])
        case "UpdateNamespace":
            return namespaces_pb2.UpdateNamespaceRequest(name=namespace)
    fields = method.request.DESCRIPTOR.fields_by_name
    return method.request(**{"namespace": namespace} if "namespace" in fields else {})


async def test_the_policy_is_asked_once_a_namespace_is_known_and_about_that_one(
    start_server: StartServer, sqlite_url: str
) -> None:
    server = await start_server(sqlite_url, policy=f"{HERE}:Curious")
    for_all_known = {"GetServerInfo", "GetClock", "ListNamespaces"}
    of_the_server = {"CreateNamespace", "AdvanceClock"}
    for method in methods().values():
        Curious.asked.clear()

        if method.name in for_all_known:
            await method.first(server.channel, about(method, "team-a"))
        elif method.name == "WatchInstances":
            (change,) = (await method.first(server.channel, about(method, "team-a"))).changes
            assert reason_name(change.refusal.error.reason) == "PERMISSION_DENIED"
        else:
            error = await refusal(method.first(server.channel, about(method, "team-a")))
            assert error.reason == "PERMISSION_DENIED", method.name

        where = "" if method.name in of_the_server else "team-a"
        expected = {(METHODS[method.path], where)}
        if method.name in for_all_known:
            expected = {(Category.READ, "default")} if method.name == "ListNamespaces" else set()
        assert Curious.asked == expected, method.name


@pytest.mark.tuning(policy_interval=0.02)
async def test_a_stream_is_asked_again_about_namespaces_of_what_it_follows_and_no_others(
    start_server: StartServer, sqlite_url: str, hire_at: Hire
) -> None:
    """A client that names a new one with every target would make it remember them all."""
    server = await start_server(sqlite_url, policy=f"{HERE}:Noting")
    await hire_at(server, credit=0)
    await Flows(server.channel).create("one")
    names = ["default", *(f"nowhere-{number}" for number in range(100))]
    targets = [workflows_pb2.WatchTarget(namespace=one, workflow="order", instance_id="one") for one in names]
    watch = Flows(server.channel).stub.WatchInstances()
    await watch.write(workflows_pb2.WatchInstancesRequest(add=targets))
    heard: list[Any] = []
    while len(heard) < len(names):
        heard += (await watch.read()).changes

    Noting.asked.clear()
    async with asyncio.timeout(PATIENCE):
        while (Category.READ, "default") not in Noting.asked:
            await asyncio.sleep(0.005)

    assert {namespace for _, namespace in Noting.asked} == {"default"}
    watch.cancel()


@pytest.fixture
async def granting(start_server: StartServer, sqlite_url: str) -> Served:
    """A server whose callers say what they may do."""
    return await start_server(sqlite_url, policy="tests.support.servers.policies:AsGranted")


async def test_a_tenant_needs_nothing_outside_of_its_namespace(granting: Served, hire_at: Hire) -> None:
    everything, tenant = known_as("admin", "*@*"), known_as("tenant", "*@team")
    stub = NamespaceServiceStub(granting.channel)
    await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name="team"), metadata=everything)

    worker = await hire_at(granting, credit=1, namespace="team", metadata=tenant)
    created = workflows_pb2.CreateInstanceRequest(namespace="team", workflow="order", instance_id="one")
    await Flows(granting.channel).stub.CreateInstance(created, metadata=tenant)
    watch = Flows(granting.channel).stub.WatchInstances(metadata=tenant)
    target = workflows_pb2.WatchTarget(namespace="team", workflow="order", instance_id="one")
    await watch.write(workflows_pb2.WatchInstancesRequest(add=[target]))

    assert (await worker.take()).task.key == "one"
    assert (await watch.read()).changes[0].instance.instance_id == "one"
    watch.cancel()


async def test_namespaces_are_shown_to_those_that_may_read_them(granting: Served) -> None:
    everything, tenant = known_as("admin", "*@*"), known_as("tenant", "read@b1", "read@b3", "work@b2", "*@default")
    stub = NamespaceServiceStub(granting.channel)
    for name in ("b1", "b2", "b3", "zz"):
        await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=name), metadata=everything)

    seen, token = [], ""
    while token or not seen:
        request = namespaces_pb2.ListNamespacesRequest(page_size=1, page_token=token)
        page = await stub.ListNamespaces(request, metadata=tenant)
        seen += [one.name for one in page.namespaces]
        token = page.next_page_token

    assert seen == ["b1", "b3", "default"]


async def test_a_namespace_is_changed_by_its_own_administrators(granting: Served) -> None:
    everything, tenant = known_as("admin", "*@*"), known_as("tenant", "admin@mine")
    stub = NamespaceServiceStub(granting.channel)
    for name in ("mine", "theirs"):
        await stub.CreateNamespace(namespaces_pb2.CreateNamespaceRequest(name=name), metadata=everything)

    def update(name: str) -> Any:
        change = namespaces_pb2.UpdateNamespaceRequest(name=name, description="new", update_mask=mask)
        return stub.UpdateNamespace(change, metadata=tenant)

    mask = namespaces_pb2.UpdateNamespaceRequest().update_mask
    mask.paths.append("description")
    assert (await update("mine")).namespace.description == "new"
    assert (await refusal(update("theirs"))).reason == "PERMISSION_DENIED"
    assert (await refusal(update("absent"))).reason == "PERMISSION_DENIED"


# ---- which operation


EVENT = {"workflow": "order", "instance_id": "there", "type": "go"}
OPERATIONS = {
    "create_instance": (Category.CREATE, workflows_pb2.CreateInstancesItem(workflow="order")),
    "send_event": (Category.EVENT, workflows_pb2.SendEventsItem(**EVENT)),
    "trigger_hook": (Category.CREATE, hook_item()),
}
"""Every operation of a transaction, and what its caller needs."""
BATCHES = {"CreateInstances": "create_instance", "SendEvents": "send_event", "TriggerHooks": "trigger_hook"}
"""Methods that take many of one kind."""


def batches() -> list[tuple[str, str]]:
    """Every method that takes many things, with every kind of thing."""
    kinds = [one.name for one in transactions_pb2.Operation.DESCRIPTOR.oneofs_by_name["operation"].fields]
    many = [
        one.name for one in methods().values() if {"items", "operations"} & {*one.request.DESCRIPTOR.fields_by_name}
    ]
    return [(name, kind) for name in many for kind in ([BATCHES[name]] if name != "Commit" else kinds)]


@pytest.mark.parametrize(("name", "kind"), batches())
async def test_every_operation_of_a_batch_needs_its_own_category(
    granting: Served, hire_at: Hire, name: str, kind: str
) -> None:
    everything = known_as("admin", "*@*")
    await hire_at(granting, credit=0, metadata=everything)
    there = workflows_pb2.CreateInstanceRequest(workflow="order", instance_id="there")
    await Flows(granting.channel).stub.CreateInstance(there, metadata=everything)
    needed, operation = OPERATIONS[kind]
    method = methods()[name]
    request: Any = method.request(items=[operation]) if name != "Commit" else commit_of(kind)

    for missing in Category:
        call = method.first(granting.channel, request, metadata=known_as("caller", *all_but(missing, "default")))
        if missing is not needed:
            assert len((await call).results) == 1
            continue
        error = await refusal(call)
        named = {"operation": "0"} if name == "Commit" else {}
        assert (error.reason, error.metadata) == ("PERMISSION_DENIED", {"category": needed} | named)


def commit_of(*kinds: str) -> transactions_pb2.CommitRequest:
    """A transaction of these operations."""
    operations = [transactions_pb2.Operation(**{kind: OPERATIONS[kind][1]}) for kind in kinds]
    return transactions_pb2.CommitRequest(operations=operations)


async def test_one_forbidden_operation_forbids_a_transaction_and_is_named(granting: Served, hire_at: Hire) -> None:
    everything, caller = known_as("admin", "*@*"), known_as("caller", "create@default")
    await hire_at(granting, "order", credit=0, metadata=everything)
    commit = methods()["Commit"]

    error = await refusal(
        commit.first(granting.channel, commit_of("create_instance", "trigger_hook", "send_event"), metadata=caller)
    )
    listed = await Flows(granting.channel).stub.ListInstances(
        workflows_pb2.ListInstancesRequest(workflow="order"), metadata=everything
    )

    assert (error.reason, error.metadata) == ("PERMISSION_DENIED", {"category": "event", "operation": "2"})
    assert not listed.instances


async def test_a_transaction_of_nothing_is_for_those_that_may_create(granting: Served) -> None:
    commit = methods()["Commit"]

    for request in (commit_of(), transactions_pb2.CommitRequest(operations=[transactions_pb2.Operation()])):
        error = await refusal(
            commit.first(granting.channel, request, metadata=known_as("caller", "event@default", "create@other"))
        )
        assert error.reason == "PERMISSION_DENIED"
