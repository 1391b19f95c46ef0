"""The workload of a run, drawn from its seed: which orders arrive when, what is done to each, and how it must end.

An order is six steps: `reserve`, a `nap`, a wait for `approval`, `charge` (which fails twice), `spawn` (which starts a
child) and `ship`. One order in ten gets its approval within milliseconds of the deadline: it may have it or not, and
the checker says which by the stamps. A sleeper waits for its approval and then sleeps for longer than any run lasts, so
that something waits in the end, too.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from tests.chaos.facts.fact import key_of
from tests.chaos.facts.workflows import Program

NAMESPACE = "default"
ELSEWHERE = "elsewhere"
"""Another namespace, with orders of the same ids."""
NAMESPACES = (NAMESPACE, ELSEWHERE)
ORDER = "order"
CHILD = "parcel"
RACE = "race"
POISON = "poison"
SLEEPER = "sleeper"

ATTEMPTS = 12
"""Most executions of a step: enough for a run of bad luck, and checked."""
FAILURES = 2
POISON_ATTEMPTS = 3
LATE = 0.1
"""Part of the orders that are sent an event when they have ended."""

Kind: TypeAlias = Literal["order", "race", "poison"]
Lifecycle: TypeAlias = Literal["", "pause", "terminate", "restart"]


@dataclass(frozen=True, slots=True)
class Workload:
    """How much of what. `seconds` is the time over which orders arrive."""

    instances: int = 500
    seconds: float = 60.0
    kind: Kind = "order"
    aimed: float = 0.1
    """Part of the orders whose approval is aimed at the deadline."""
    aim_ms: float = 20.0
    shots: int = 1
    """Events that are sent to each order that is aimed at, some milliseconds apart."""
    twice: float = 0.2
    """Part of the orders that are created twice with one request id."""
    lifecycle: float = 0.0
    """Part of the orders that are paused, terminated or restarted on their way."""
    poison: int = 0
    """Instances whose only step kills its worker, every time."""
    sleepers: int = 0
    """Instances that still sleep when the run is over."""
    body_ms: float = 800.0
    """Longest time of a step's body."""
    nap_s: tuple[float, float] = (0.2, 3.0)
    same_instant: bool = False
    """All naps end at one instant."""
    hasty: float = 0.0
    """Part of the calls whose first try is given up after up to 30 milliseconds."""
    hooks: int = 0
    """Hooks that arrive over the same time, half of them to be executed later."""
    hopeless: float = 0.01
    """Part of the hooks that fail as often as they may be executed."""
    batch: int = 50
    """Hooks that are triggered at once."""
    ahead: float = 20.0
    """Seconds over which those hooks are spread that are to be executed later."""
    rivals: int = 0
    """Other clients that create each order at the same time, with request ids of their own."""
    attempts: int = ATTEMPTS
    """Most executions of each step of an order. Of fewer than usual some orders may run out."""
    failures: int = FAILURES
    """How often `charge` fails before it succeeds."""
    elsewhere: float = 0.1
    """Part of the orders whose ids there are once more, in another namespace."""


@dataclass(frozen=True, slots=True)
class Order:
    """One instance, and what is done to it. Times are seconds after its arrival."""

    id: str
    workflow: str
    arrive: float
    nap: float
    body_ms: float
    approve_after: float
    """When its approval is sent; of one that is aimed, milliseconds around the deadline."""
    aimed: bool
    wait: float
    """How long it waits for its approval."""
    twice: bool
    lifecycle: Lifecycle
    lifecycle_after: float
    late: bool = False
    """It is sent another event when it has ended, which must be refused."""
    attempts: int = ATTEMPTS
    failures: int = FAILURES
    namespace: str = NAMESPACE

    @property
    def key(self) -> str:
        """What the records call it."""
        return key_of(self.namespace, self.workflow, self.id)

    @property
    def params(self) -> dict[str, Any]:
        """What its workflow is given."""
        same = ("nap", "body_ms", "wait", "aimed", "attempts", "failures")
        return {name: getattr(self, name) for name in same}

    @property
    def approval(self) -> dict[str, Any]:
        """The event that it waits for."""
        return {"approved": self.id}


def orders(workload: Workload, seed: int) -> list[Order]:
    """The orders of a run, by arrival."""
    rng = random.Random(f"orders/{seed}")
    drawn = [_order(workload, rng, number) for number in range(workload.instances)]
    others = [_order(workload, rng, number) for number in range(round(workload.instances * workload.elsewhere))]
    drawn += [replace(order, namespace=ELSEWHERE) for order in others]
    poison = [_poison(workload, rng, number) for number in range(workload.poison)]
    sleepers = [_sleeper(workload, rng, number) for number in range(workload.sleepers)]
    return sorted([*drawn, *poison, *sleepers], key=lambda order: order.arrive)


def _order(workload: Workload, rng: random.Random, number: int) -> Order:
    lifecycle: Lifecycle = ""
    if rng.random() < workload.lifecycle:
        lifecycle = rng.choice(("pause", "pause", "terminate", "restart"))
    # A restart begins without the approval that the earlier run got, so it must end without one.
    aimed = workload.kind == "race" or lifecycle == "restart" or rng.random() < workload.aimed
    arrive = rng.uniform(0, workload.seconds)
    nap = rng.uniform(*workload.nap_s)
    wait = rng.uniform(1.0, 3.0) if aimed else 1200.0
    approve_after = rng.uniform(-workload.aim_ms, workload.aim_ms) if aimed else rng.uniform(0, 4)
    body_ms = rng.uniform(0, workload.body_ms)
    life = (nap + wait if aimed else max(nap, approve_after)) + 2 * body_ms / 1000  # about
    return Order(
        id=f"{workload.kind}-{number}",
        workflow=workload.kind,
        arrive=arrive,
        nap=nap,
        body_ms=body_ms,
        approve_after=approve_after,
        aimed=aimed,
        wait=wait,
        twice=rng.random() < workload.twice,
        lifecycle=lifecycle,
        lifecycle_after=rng.uniform(0, life),
        late=rng.random() < LATE,
        attempts=workload.attempts,
        failures=workload.failures,
    )


def _poison(workload: Workload, rng: random.Random, number: int) -> Order:
    arrive = rng.uniform(0, workload.seconds)
    return Order(f"poison-{number}", POISON, arrive, 0, 0, 0, False, 0, False, "", 0, attempts=POISON_ATTEMPTS)


def _sleeper(workload: Workload, rng: random.Random, number: int) -> Order:
    arrive = rng.uniform(0, workload.seconds)
    return Order(f"sleeper-{number}", SLEEPER, arrive, 0, 0, rng.uniform(0, 2), False, 1200.0, False, "", 0)


HOOK_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class HookOrder:
    """A hook that is triggered. Times are seconds."""

    id: str
    arrive: float
    after: float | None
    """How long after its arrival it is to be executed. None: at once."""
    failures: int
    """How often its handler fails before it succeeds."""


def hooks(workload: Workload, seed: int) -> list[list[HookOrder]]:
    """The hooks of a run, in the batches in which they are triggered."""
    rng = random.Random(f"hooks/{seed}")
    batches = []
    for first in range(0, workload.hooks, workload.batch):
        arrive = rng.uniform(0, workload.seconds)
        numbers = range(first, min(first + workload.batch, workload.hooks))
        batches.append([_hook(workload, rng, number, arrive) for number in numbers])
    return sorted(batches, key=lambda batch: batch[0].arrive)


def _hook(workload: Workload, rng: random.Random, number: int, arrive: float) -> HookOrder:
    after = rng.uniform(0, workload.ahead) if number % 2 else None
    failures = HOOK_ATTEMPTS if rng.random() < workload.hopeless else rng.choice((0,) * 9 + (2,))
    return HookOrder(f"hook-{number}", arrive, after, failures)


def programs(order: Order) -> list[Program]:
    """What the order may do and how it must end, and the same of its child."""
    if order.workflow == POISON:
        return [Program(order.key, ["errored"], {"die": POISON_ATTEMPTS})]
    if order.workflow == RACE:
        return [Program(order.key, ["complete"], {"approval": None, "tail": None})]
    if order.workflow == SLEEPER:
        return [Program(order.key, [], {"approval": None, "rest": None})]
    child = parcel(f"{order.id}-parcel", order.namespace)
    bodies = ("reserve", "charge", "spawn", "ship")
    return [
        Program(
            order.key,
            _ends(order),
            {
                "reserve": order.attempts,
                "nap": None,
                "approval": None,
                "charge": order.attempts,
                "spawn": order.attempts,
                "ship": order.attempts,
            },
            [*bodies] if order.aimed else ["reserve", "approval", "charge", "spawn", "ship"],
            {"spawn": child.key},
        ),
        child,
    ]


def _ends(order: Order) -> list[str]:
    terminated = ["terminated"] if order.lifecycle == "terminate" else []
    return ["complete", *terminated, *(["errored"] if order.attempts < ATTEMPTS else [])]


def parcel(instance_id: str, namespace: str = NAMESPACE) -> Program:
    """What a child does."""
    return Program(key_of(namespace, CHILD, instance_id), ["complete"], {"pack": ATTEMPTS}, ["pack"])


def operations(workload: Workload, drawn: list[Order]) -> dict[str, int]:
    """The requests that clients mean to make."""
    planned = {"create": len(drawn)}
    events = (workload.shots if order.aimed else 1 for order in drawn if order.workflow != POISON)
    planned["event"] = sum(events) + sum(order.late for order in drawn)
    if workload.hooks:
        planned["trigger"] = -(-workload.hooks // workload.batch)
    for order in drawn:
        if order.lifecycle:
            planned[order.lifecycle] = planned.get(order.lifecycle, 0) + 1
            if order.lifecycle == "pause":
                planned["resume"] = planned.get("resume", 0) + 1
    return planned


def workload_from(values: dict[str, Any]) -> Workload:
    """A workload as another process was told."""
    return Workload(**{**values, "nap_s": tuple(values["nap_s"])})


def workload_to(workload: Workload) -> dict[str, Any]:
    """A workload to tell another process."""
    return asdict(workload)
