"""Access: the permission that each method needs, and the seam where a deployment puts its policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from inspect import iscoroutinefunction
from typing import Any, Protocol


class Category(StrEnum):
    """The effect of a method, as far as permission goes. Roles are sets of categories."""

    CREATE = "create"
    MANAGE = "manage"
    EVENT = "event"
    WORK = "work"
    DISPATCH = "dispatch"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller before it is authenticated: its address and its metadata."""

    peer: str
    metadata: Mapping[str, str | bytes]


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that a policy has recognised. Limits, replies by request_id and audit lines go by its name."""

    name: str


class Policy(Protocol):
    """Decides who a caller is and what it may do. Configured with --policy module:name."""

    async def authenticate(self, caller: Caller) -> Principal:
        """Return the principal of a caller, or raise `Unauthenticated`."""

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """Whether the principal may do this there; only True is a yes. An empty namespace means the server itself."""


class AllowAll:
    """Allows every call: for a server that only its own machine can reach."""

    async def authenticate(self, caller: Caller) -> Principal:
        """Return the same principal for every caller."""
        return Principal("anonymous")

    def allows(self, principal: Principal, category: Category, namespace: str) -> bool:
        """Yes."""
        return True


class PolicyNotFound(Exception):
    """--policy names something that cannot be imported."""


def load_policy(name: str) -> Policy:
    """The policy that `module:name` makes, or the one that allows everything if none is named."""
    if not name:
        return AllowAll()
    module, _, attribute = name.partition(":")
    try:
        policy: Policy = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise PolicyNotFound(f"policy {name}: {error}") from None
    authenticate, allows = getattr(policy, "authenticate", None), getattr(policy, "allows", None)
    if not _answers_later(authenticate) or not callable(allows) or _answers_later(allows):
        raise PolicyNotFound(f"policy {name}: it needs `async def authenticate` and `def allows`")
    return policy


def _answers_later(function: Any) -> bool:
    """Whether it returns a coroutine, which is true whatever it would say."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _service(name: str, **categories: Category) -> dict[str, Category]:
    return {f"/stepwell.v1.{name}/{method}": category for method, category in categories.items()}


METHODS: dict[str, Category] = {
    **_service(
        "WorkflowService",
        ListWorkflows=Category.READ,
        CreateInstance=Category.CREATE,
        CreateInstances=Category.CREATE,
        GetInstance=Category.READ,
        ListInstances=Category.READ,
        PauseInstance=Category.MANAGE,
        ResumeInstance=Category.MANAGE,
        TerminateInstance=Category.MANAGE,
        RestartInstance=Category.MANAGE,
        SendEvent=Category.EVENT,
        SendEvents=Category.EVENT,
        GetHistory=Category.READ,
        WaitInstance=Category.READ,
        WatchInstances=Category.READ,
    ),
    **_service(
        "WorkerService",
        Connect=Category.WORK,
        RegisterHandlers=Category.WORK,
        ClaimTasks=Category.WORK,
        RenewTasks=Category.WORK,
        CommitTask=Category.WORK,
        ListWorkers=Category.READ,
    ),
    **_service(
        "DispatcherService",
        WakeStream=Category.DISPATCH,
        GetNextWake=Category.DISPATCH,
        Process=Category.DISPATCH,
    ),
    **_service(
        "HookService",
        TriggerHooks=Category.CREATE,
        GetHook=Category.READ,
        ListHooks=Category.READ,
        RetryHook=Category.MANAGE,
        CancelHook=Category.MANAGE,
        PutHookTarget=Category.MANAGE,
        ListHookTargets=Category.READ,
        DeleteHookTarget=Category.MANAGE,
    ),
    **_service("TransactionService", Commit=Category.CREATE),
    **_service(
        "NamespaceService",
        CreateNamespace=Category.ADMIN,
        ListNamespaces=Category.READ,
        UpdateNamespace=Category.ADMIN,
    ),
    **_service("ServerService", GetServerInfo=Category.READ),
    **_service("ClockService", GetClock=Category.READ, AdvanceClock=Category.ADMIN),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Category.READ,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Category.READ,
}
"""Every method and its category. A method that is missing here is denied to every caller."""

OPEN_METHODS = frozenset(
    {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/List", "/grpc.health.v1.Health/Watch"}
)
"""Methods that need no permission."""

KNOWN_METHODS = frozenset({"/stepwell.v1.ServerService/GetServerInfo", "/stepwell.v1.ClockService/GetClock"})
"""Methods that every authenticated caller may call."""

ASKING_METHODS = frozenset(
    {
        "/stepwell.v1.WorkerService/Connect",
        "/stepwell.v1.WorkflowService/WatchInstances",
        "/stepwell.v1.TransactionService/Commit",
        "/stepwell.v1.NamespaceService/ListNamespaces",
    }
)
"""Methods that ask the policy themselves: about each namespace as it is named, or about each kind of operation."""

NAMESPACE_FIELDS = {"/stepwell.v1.NamespaceService/UpdateNamespace": "name"}
"""Where requests say which namespace they are about, if not in a field of that name."""

QUIET_METHODS = OPEN_METHODS | {method for method in METHODS if method.startswith("/grpc.reflection.")}
"""Methods that tools call beside the call that counts: logged for debugging only."""

WAITING_METHODS = frozenset(
    {
        "/stepwell.v1.WorkflowService/CreateInstance",
        "/stepwell.v1.WorkflowService/WaitInstance",
        "/stepwell.v1.WorkerService/ClaimTasks",
        "/stepwell.v1.DispatcherService/Process",
        "/stepwell.v1.ClockService/AdvanceClock",
    }
)
"""Unary methods that can be asked to wait."""
