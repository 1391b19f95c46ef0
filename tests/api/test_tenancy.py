"""Tenants of one server: what is another's is answered as if it were not there, by every method and every frame."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from google.protobuf.message import Message

from stepwell.v1 import (
    clock_pb2,
    dispatchers_pb2,
    frames_pb2,
    hooks_pb2,
    namespaces_pb2,
    server_pb2,
    transactions_pb2,
    workers_pb2,
    workflows_pb2,
)
from tests.api.conftest import Hire
from tests.support.calls.contract import methods
from tests.support.calls.tenants import ANN, BOB, CARL, LEASES, Bob, Things, made_up, open_namespaces, outcome, plain
from tests.support.servers.servers import Served, StartServer
from tests.support.workers.frames import (
    begin,
    done,
    failed,
    finish,
    need_state,
    opening,
    payload,
    returned,
    seconds,
    sleep,
    suspend,
    task_ack,
)
from tests.support.workers.workers import WORKFLOW, HandWorker, Job

Asks: TypeAlias = Callable[[Things, str], Message]


@pytest.fixture
async def replicas(start_server: StartServer, database_url: str) -> list[Served]:
    """Where the two tenants are: two replicas of a server, or one where there can be no more."""
    settings = {"policy": "tests.support.servers.policies:AsGranted", "webhooks": True, "leases": LEASES}
    first = await start_server(database_url, **settings)
    others = [await start_server(database_url, **settings)] if database_url.startswith("postgresql") else [first]
    await open_namespaces(first.channel, "a", "b")
    return [first, *others]


@pytest.fixture
async def bob(replicas: list[Served], hire_at: Hire) -> Bob:
    """The tenant that is asked for."""
    things = Things("b", "private-flow", "held", "sent", "private-hook", "asked", uuid4().hex, uuid4().hex)
    known = {"namespace": "b", "session_id": things.session_id, "metadata": BOB, "worker_id": "his"}
    worker = await hire_at(replicas[0], "private-flow", "order", hooks=("private-hook",), credit=10, **known)
    tenant = Bob(replicas[0], worker, things)
    await tenant.settle()
    return tenant


@pytest.fixture
async def ann(replicas: list[Served], hire_at: Hire) -> HandWorker:
    """The tenant that asks, by a worker of her own."""
    return await hire_at(replicas[1], "order", hooks=("note",), credit=0, namespace="a", metadata=ANN, worker_id="hers")


# ---- unary calls, and the first word of streams


def key(things: Things, namespace: str) -> dict[str, Any]:
    return {"namespace": namespace, "workflow": things.workflow, "instance_id": things.instance_id}


def managing(name: str) -> Asks:
    """A call that changes an instance."""
    request: Any = methods()[name].request
    return lambda t, ns: request(**key(t, ns), request_id=t.request_id)


def listing(name: str, **about: Any) -> Asks:
    """The next page of somebody's list."""
    request: Any = methods()[name].request
    return lambda t, ns: request(namespace=ns, page_token=t.page_tokens[name], **about)


def event(things: Things, **fields: Any) -> workflows_pb2.SendEventsItem:
    about = {"workflow": things.workflow, "instance_id": things.instance_id, "request_id": things.request_id}
    return workflows_pb2.SendEventsItem(**about | fields, type="go")


def new(things: Things, workflow: str = "") -> workflows_pb2.CreateInstancesItem:
    return workflows_pb2.CreateInstancesItem(
        workflow=workflow or things.workflow,
        instance_id=things.instance_id,
        params=payload('"private"'),
        request_id=things.request_id,
    )


def hook(things: Things, **fields: Any) -> hooks_pb2.TriggerHooksItem:
    about = {"hook_id": things.hook_id, "request_id": f"{things.request_id}-{things.hook_id}"}
    return hooks_pb2.TriggerHooksItem(name=things.hook_name, **about | fields)


def hello(things: Things, namespace: str, session_id: str, **fields: Any) -> frames_pb2.Hello:
    held = [frames_pb2.HeldTask(task_id=task_id, fence=fence) for task_id, fence in things.leases.values()]
    worker = HandWorker(None, (), namespace=namespace, session_id=session_id, worker_id="hers")  # type: ignore[arg-type]
    return worker.hello(held=held, **fields)


def wake_filter(things: Things) -> dispatchers_pb2.WakeFilter:
    return dispatchers_pb2.WakeFilter(names=[things.workflow, things.hook_name])


def operation(**one: Any) -> Asks:
    """A transaction of one operation."""
    return lambda t, ns: transactions_pb2.CommitRequest(
        namespace=ns,
        operations=[transactions_pb2.Operation(**{kind: make(t) for kind, make in one.items()})],
        request_id=t.request_id,
    )


def claim(session: str, *handlers: str) -> Asks:
    return lambda t, ns: workers_pb2.ClaimTasksRequest(
        namespace=ns,
        session_id=getattr(t, session),
        request_id=t.request_id,
        handlers=[frames_pb2.HandlerRef(kind=WORKFLOW, name=name) for name in handlers],
    )


def renew(session: str) -> Asks:
    return lambda t, ns: workers_pb2.RenewTasksRequest(
        namespace=ns, session_id=getattr(t, session), tasks=hello(t, ns, "").held
    )


WALK: list[tuple[str, Asks]] = [
    ("GetServerInfo", lambda t, ns: server_pb2.GetServerInfoRequest()),
    ("GetClock", lambda t, ns: clock_pb2.GetClockRequest()),
    ("AdvanceClock", lambda t, ns: clock_pb2.AdvanceClockRequest(by=seconds(1), request_id=t.request_id)),
    ("CreateNamespace", lambda t, ns: namespaces_pb2.CreateNamespaceRequest(name=t.namespace, request_id=t.request_id)),
    ("UpdateNamespace", lambda t, ns: namespaces_pb2.UpdateNamespaceRequest(name=t.namespace, request_id=t.request_id)),
    ("ListNamespaces", lambda t, ns: namespaces_pb2.ListNamespacesRequest(page_token=t.page_tokens["ListNamespaces"])),
    ("ListWorkflows", listing("ListWorkflows")),
    ("CreateInstance", lambda t, ns: workflows_pb2.CreateInstanceRequest(**key(t, ns), request_id=t.request_id)),
    ("CreateInstances", lambda t, ns: workflows_pb2.CreateInstancesRequest(namespace=ns, items=[new(t)])),
    ("GetInstance", lambda t, ns: workflows_pb2.GetInstanceRequest(**key(t, ns))),
    ("ListInstances", lambda t, ns: workflows_pb2.ListInstancesRequest(namespace=ns, workflow=t.workflow)),
    ("ListInstances", listing("ListInstances", workflow="order")),
    ("PauseInstance", managing("PauseInstance")),
    ("ResumeInstance", managing("ResumeInstance")),
    ("TerminateInstance", managing("TerminateInstance")),
    ("RestartInstance", managing("RestartInstance")),
    ("SendEvent", lambda t, ns: workflows_pb2.SendEventRequest(**key(t, ns), type="go", request_id=t.request_id)),
    ("SendEvents", lambda t, ns: workflows_pb2.SendEventsRequest(namespace=ns, items=[event(t)])),
    ("SendEvents", lambda t, ns: workflows_pb2.SendEventsRequest(namespace=ns, items=[event(t, workflow="order")])),
    ("GetHistory", lambda t, ns: workflows_pb2.GetHistoryRequest(**key(t, ns))),
    ("GetHistory", listing("GetHistory", workflow="order", instance_id="none")),
    ("WaitInstance", lambda t, ns: workflows_pb2.WaitInstanceRequest(**key(t, ns))),
    (
        "WatchInstances",
        lambda t, ns: workflows_pb2.WatchInstancesRequest(add=[workflows_pb2.WatchTarget(**key(t, ns))]),
    ),
    ("GetHook", lambda t, ns: hooks_pb2.GetHookRequest(namespace=ns, hook_id=t.hook_id)),
    ("ListHooks", lambda t, ns: hooks_pb2.ListHooksRequest(namespace=ns, name=t.hook_name)),
    ("ListHooks", listing("ListHooks")),
    ("RetryHook", lambda t, ns: hooks_pb2.RetryHookRequest(namespace=ns, hook_id=t.hook_id, request_id=t.request_id)),
    ("CancelHook", lambda t, ns: hooks_pb2.CancelHookRequest(namespace=ns, hook_id=t.hook_id, request_id=t.request_id)),
    ("ListHookTargets", listing("ListHookTargets")),
    ("DeleteHookTarget", lambda t, ns: hooks_pb2.DeleteHookTargetRequest(namespace=ns, name=t.hook_name)),
    ("DeleteHookTarget", lambda t, ns: hooks_pb2.DeleteHookTargetRequest(namespace=ns, name="target-1")),
    ("WakeStream", lambda t, ns: dispatchers_pb2.WakeStreamRequest(namespace=ns, filter=wake_filter(t))),
    ("GetNextWake", lambda t, ns: dispatchers_pb2.GetNextWakeRequest(namespace=ns, filter=wake_filter(t))),
    ("Process", lambda t, ns: dispatchers_pb2.ProcessRequest(namespace=ns, filter=wake_filter(t))),
    ("Commit", operation(create_instance=new)),
    ("Commit", operation(send_event=lambda t: event(t, request_id=""))),
    ("ListWorkers", listing("ListWorkers")),
    # sessions of others, before and after somebody else uses the same ids
    ("ClaimTasks", claim("session_id")),
    ("ClaimTasks", claim("calling_session_id", "calls")),
    ("RenewTasks", renew("session_id")),
    ("RenewTasks", renew("calling_session_id")),
    (
        "Connect",
        lambda t, ns: workers_pb2.ConnectRequest(frames=[frames_pb2.WorkerFrame(hello=hello(t, ns, t.session_id))]),
    ),
    (
        "RegisterHandlers",
        lambda t, ns: workers_pb2.RegisterHandlersRequest(hello=hello(t, ns, t.calling_session_id)),
    ),
    ("ClaimTasks", claim("calling_session_id")),
    ("RenewTasks", renew("calling_session_id")),
    # the same ids and request ids in a namespace of one's own
    ("CreateInstances", lambda t, ns: workflows_pb2.CreateInstancesRequest(namespace=ns, items=[new(t, "order")])),
    ("TriggerHooks", lambda t, ns: hooks_pb2.TriggerHooksRequest(namespace=ns, items=[hook(t)])),
    (
        "PutHookTarget",
        lambda t, ns: hooks_pb2.PutHookTargetRequest(
            namespace=ns,
            name=t.hook_name,
            url="https://receiver.example.com",
            secrets=[SECRET],
            request_id=t.request_id,
        ),
    ),
    ("Commit", operation(trigger_hook=lambda t: hook(t, request_id=""))),
]
"""Every method with the names of another's things, or with made-up ones. Its order is that of the walk."""
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
IN_FRAMES = {"CommitTask"}
"""Methods whose frames are walked by themselves."""


async def walk(server: Served, things: Things, namespaces: Sequence[str]) -> list[tuple[str, str, Any]]:
    """What Ann hears when she asks for these things: in her namespace, and in theirs."""
    heard = []
    for name, ask in WALK:
        for namespace in namespaces:
            call = methods()[name].first(server.channel, ask(things, namespace), metadata=ANN)
            where = "hers" if namespace == "a" else "theirs"
            heard.append((name, where, await outcome(call, things)))
    return heard


def differences(foreign: Sequence[Any], absent: Sequence[Any]) -> list[tuple[Any, Any]]:
    """What was heard of another's things, where that is not what was heard of nothing."""
    return [pair for pair in zip(foreign, absent, strict=True) if pair[0] != pair[1]]


def test_the_walk_meets_every_method_and_every_frame() -> None:
    frames = {one.name for one in frames_pb2.WorkerFrame.DESCRIPTOR.oneofs_by_name["body"].fields}

    assert {name for name, _ in WALK} | IN_FRAMES == {*methods()}, "say how a tenant could reach another's things by it"
    assert {*FRAMES} | ABOUT_NO_TASK == frames, "say how a tenant could reach another's task by it"


async def test_another_tenants_things_are_answered_as_if_they_were_not_there(
    replicas: list[Served], ann: HandWorker, bob: Bob
) -> None:
    nothing = made_up(bob.things)
    before = await bob.stored()

    foreign = await walk(replicas[1], bob.things, ["a", "b"])
    absent = await walk(replicas[1], nothing, ["a", nothing.namespace])

    assert differences(foreign, absent) == []
    assert not [one for one in foreign if "private" in str(one)]
    assert await bob.stored() == before
    await bob.worker.beat()
    assert not bob.worker.is_over


# ---- frames


FRAMES: dict[str, Callable[[], frames_pb2.WorkerFrame]] = {
    "task_ack": task_ack,
    "need_state": need_state,
    "step_done": lambda: done("first"),
    "step_failed": lambda: failed("first"),
    "wait": lambda: sleep("nap", 60),
    "suspend": suspend,
    "finish": finish,
    "begin_steps": lambda: begin(opening("second")),
    "outcome": returned,
    "heartbeat": lambda: frames_pb2.WorkerFrame(heartbeat=frames_pb2.Heartbeat()),
}
"""Every frame about a task."""
ABOUT_NO_TASK = {"hello", "credit", "goodbye"}
NUMBERS = (1, 2)
"""Of a frame that was applied, and of the next one."""


async def said_by_stream(worker: HandWorker, things: Things) -> list[Any]:
    """What a worker hears of tasks that others hold, or held."""
    heard = []
    for kind, (task_id, fence) in things.leases.items():
        for body, frame in FRAMES.items():
            for number in NUMBERS if body not in ("task_ack", "need_state", "heartbeat") else (0,):
                job = Job(worker, task_id, fence, frames_pb2.Task())
                said = job.stamp(frame())
                said.number = number
                if body == "heartbeat":
                    await worker.beat(job)
                else:
                    await worker.say(said)
                answers = [await worker.next("ack", "refused", "stale", "task_state", "resolved", task_id=task_id)]
                await worker.beat()
                answers += [one for one in worker.inbox if one.task_id == task_id]
                heard.append((kind, body, number, [plain(one, things) for one in answers]))
    return heard


async def test_a_worker_hears_of_no_task_of_another_tenant(ann: HandWorker, bob: Bob) -> None:
    before = await bob.stored()

    foreign = await said_by_stream(ann, bob.things)
    absent = await said_by_stream(ann, made_up(bob.things))

    assert differences(foreign, absent) == []
    assert {one["stale"]["reason"] for *_, answers in foreign for one in answers} == {"ERROR_REASON_LEASE_LOST"}
    assert await bob.stored() == before


async def said_by_calls(
    server: Served, things: Things, namespace: str, sessions: Sequence[str], metadata: Any
) -> list[Any]:
    """What a worker that calls hears of tasks that others hold, or held."""
    heard = []
    for session_id in sessions:
        for kind, (task_id, fence) in things.leases.items():
            for body, frame in FRAMES.items():
                if body == "heartbeat":
                    continue
                said = frame()
                said.task_id, said.fence, said.number = task_id, fence, 1
                request = workers_pb2.CommitTaskRequest(namespace=namespace, session_id=session_id, frames=[said])
                call = methods()["CommitTask"].first(server.channel, request, metadata=metadata)
                heard.append((kind, body, await outcome(call, things)))
    return heard


async def test_a_commit_reaches_no_task_of_another_tenant(replicas: list[Served], ann: HandWorker, bob: Bob) -> None:
    nothing, theirs = made_up(bob.things), bob.things
    before = await bob.stored()

    for namespaces in (("a", "a"), ("b", nothing.namespace)):
        sessions = [(ann.session_id, ann.session_id), (theirs.session_id, nothing.session_id)]
        sessions.append((theirs.calling_session_id, nothing.calling_session_id))
        foreign = [await said_by_calls(replicas[1], theirs, namespaces[0], [one], ANN) for one, _ in sessions]
        absent = [await said_by_calls(replicas[1], nothing, namespaces[1], [one], ANN) for _, one in sessions]

        assert foreign == absent
        code = "ABORTED" if namespaces[0] == "a" else "PERMISSION_DENIED"
        assert {answer[0] for heard in foreign for *_, answer in heard} == {code}
    assert await bob.stored() == before


# ---- sessions


async def test_a_session_belongs_to_the_principal_that_began_it(
    replicas: list[Served], hire_at: Hire, bob: Bob
) -> None:
    """Also within one namespace: its id is of no use to another."""
    before, there, session_id = await bob.stored(), replicas[1], bob.things.session_id
    kept = {kind: bob.things.leases[kind] for kind in ("held", "claimed")}
    bob.things.leases, nothing = kept, made_up(bob.things)
    nothing.leases = dict.fromkeys(kept, (10**12, 10**13))

    foreign = await said_by_calls(there, bob.things, "b", [session_id, bob.things.calling_session_id], CARL)
    absent = await said_by_calls(there, nothing, "b", [session_id, bob.things.calling_session_id], CARL)
    claims = [claim(one)(bob.things, "b") for one in ("session_id", "calling_session_id")]
    claimed = [
        await outcome(methods()["ClaimTasks"].first(there.channel, one, metadata=CARL), nothing) for one in claims
    ]
    renewed = await methods()["RenewTasks"].first(there.channel, renew("session_id")(bob.things, "b"), metadata=CARL)

    assert foreign == absent
    assert {answer[1] for *_, answer in foreign} == {"LEASE_LOST"}
    assert {answer[1] for answer in claimed} == {"SESSION_NOT_REGISTERED"}
    assert not [one for one in renewed.results if one.held]
    assert await bob.stored() == before

    theft = await hire_at(there, connect=False, namespace="b", session_id=session_id, metadata=CARL)
    welcome = await theft.connect(held=hello(bob.things, "b", session_id).held)

    assert (welcome.connection, [*welcome.held]) == (1, [])
    await bob.worker.beat()
    assert not bob.worker.is_over


async def test_a_session_moves_with_its_principal_and_its_leases(
    replicas: list[Served], hire_at: Hire, bob: Bob
) -> None:
    moved = await hire_at(
        replicas[1], connect=False, namespace="b", session_id=bob.things.session_id, metadata=BOB, worker_id="his"
    )
    task_id, fence = bob.things.leases["held"]

    welcome = await moved.connect(held=[frames_pb2.HeldTask(task_id=task_id, fence=fence)])

    assert [(one.task_id, one.fence) for one in welcome.held] == [(task_id, fence)]
    assert welcome.connection == 2


async def test_no_page_token_tells_a_session(bob: Bob) -> None:
    for name, token in bob.things.page_tokens.items():
        told = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        for session_id in (bob.things.session_id, bob.things.calling_session_id):
            assert session_id.encode() not in told, name
