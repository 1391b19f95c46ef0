"""The workflows of a run, drawn from its seed: which orders arrive when, what is done to each, and how it must end.

An order is six steps: `reserve`, a `nap`, a wait for `approval`, `charge` (which fails twice), `spawn` (which starts a
child) and `ship`. One order in ten gets its approval within milliseconds of the deadline: it may have it or not, and
the checker says which by the stamps. A sleeper waits for its approval and then sleeps for longer than any run lasts, so
that something waits in the end, too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeAlias

from tests.chaos.facts.fact import key_of
from tests.chaos.facts.workflows import Program
from tests.chaos.site.names import ELSEWHERE, NAMESPACE
from tests.chaos.workload.load import Load

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
class Orders(Load):
    """Orders, and what is done to them on their way."""

    primitive: ClassVar[str] = "workflows"
    handlers: ClassVar[tuple[str, ...]] = (ORDER, CHILD, RACE, POISON, SLEEPER)
    left: ClassVar[str] = "(SELECT count(*) FROM workflow_steps WHERE name = 'rest' AND status = 'waiting')"

    instances: int = 500
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
    rivals: int = 0
    """Other clients that create each order at the same time, with request ids of their own."""
    attempts: int = ATTEMPTS
    """Most executions of each step of an order. Of fewer than usual some orders may run out."""
    failures: int = FAILURES
    """How often `charge` fails before it succeeds."""
    elsewhere: float = 0.1
    """Part of the orders whose ids there are once more, in another namespace."""

    @property
    def watched(self) -> int:
        """Instances that are watched to their ends."""
        return self.instances

    def drawn(self, seed: int) -> list[Order]:
        """The orders of a run, by arrival."""
        rng = random.Random(f"orders/{seed}")
        drawn = [_order(self, rng, number) for number in range(self.instances)]
        others = [_order(self, rng, number) for number in range(round(self.instances * self.elsewhere))]
        drawn += [replace(order, namespace=ELSEWHERE) for order in others]
        poison = [_poison(self, rng, number) for number in range(self.poison)]
        sleepers = [_sleeper(self, rng, number) for number in range(self.sleepers)]
        return sorted([*drawn, *poison, *sleepers], key=lambda order: order.arrive)

    def plans(self, seed: int) -> list[Program]:
        """What each order and each child may do, and how it must end."""
        return [program for order in self.drawn(seed) for program in programs(order)]

    def operations(self, seed: int) -> dict[str, int]:
        """A create for each, its events, and what else is done to it."""
        drawn = self.drawn(seed)
        planned = {"create": len(drawn)}
        events = (self.shots if order.aimed else 1 for order in drawn if order.workflow != POISON)
        planned["event"] = sum(events) + sum(order.late for order in drawn)
        for order in drawn:
            if order.lifecycle:
                planned[order.lifecycle] = planned.get(order.lifecycle, 0) + 1
                if order.lifecycle == "pause":
                    planned["resume"] = planned.get("resume", 0) + 1
        return planned

    def last_arrival(self, seed: int) -> float:
        """When the last order arrives."""
        return max((order.arrive for order in self.drawn(seed)), default=0.0)

    def shortened(self, instances: int, seconds: float) -> Self:
        """So many orders."""
        return replace(self, instances=instances, seconds=min(self.seconds, seconds))


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


def _order(load: Orders, rng: random.Random, number: int) -> Order:
    lifecycle: Lifecycle = ""
    if rng.random() < load.lifecycle:
        lifecycle = rng.choice(("pause", "pause", "terminate", "restart"))
    # A restart begins without the approval that the earlier run got, so it must end without one.
    aimed = load.kind == "race" or lifecycle == "restart" or rng.random() < load.aimed
    arrive = rng.uniform(0, load.seconds)
    nap = rng.uniform(*load.nap_s)
    wait = rng.uniform(1.0, 3.0) if aimed else 1200.0
    approve_after = rng.uniform(-load.aim_ms, load.aim_ms) if aimed else rng.uniform(0, 4)
    body_ms = rng.uniform(0, load.body_ms)
    life = (nap + wait if aimed else max(nap, approve_after)) + 2 * body_ms / 1000  # about
    return Order(
        id=f"{load.kind}-{number}",
        workflow=load.kind,
        arrive=arrive,
        nap=nap,
        body_ms=body_ms,
        approve_after=approve_after,
        aimed=aimed,
        wait=wait,
        twice=rng.random() < load.twice,
        lifecycle=lifecycle,
        lifecycle_after=rng.uniform(0, life),
        late=rng.random() < LATE,
        attempts=load.attempts,
        failures=load.failures,
    )


def _poison(load: Orders, rng: random.Random, number: int) -> Order:
    arrive = rng.uniform(0, load.seconds)
    return Order(f"poison-{number}", POISON, arrive, 0, 0, 0, False, 0, False, "", 0, attempts=POISON_ATTEMPTS)


def _sleeper(load: Orders, rng: random.Random, number: int) -> Order:
    arrive = rng.uniform(0, load.seconds)
    return Order(f"sleeper-{number}", SLEEPER, arrive, 0, 0, rng.uniform(0, 2), False, 1200.0, False, "", 0)


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
