"""What workers say in the machine of workflows: moves that hypothesis draws, and the frames that they make."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from stepwell_server.domain.values.failures import Failure
from stepwell_server.domain.values.times import SECOND
from stepwell_server.domain.workflows.frames import Finish, News
from tests.support.models.workflow_model import MOST, POLICY, Answered, Run
from tests.support.replicas.runs import BEGIN, FINISH, SUSPEND, Said, done, expects, failed, opens, sleeps

BODIES = ("a", "b")
TYPES = {"w1": "go", "w2": "go", "v": "other"}
NAP, TIMEOUT = 20 * SECOND, 30 * SECOND

bodies = st.sampled_from(BODIES)


@dataclass(frozen=True)
class Move:
    """Part of a report. Not every kind uses every part."""

    kind: str
    step: str
    late: bool
    """About the attempt before the one that is next."""
    opened: tuple[str, ...]
    final: bool


moves = st.builds(
    Move,
    st.sampled_from(["begin", "done", "failed", "finish", "sleep", "expect", "suspend", "done", "failed", "finish"]),
    step=bodies,
    late=st.sampled_from([False] * 7 + [True]),
    opened=st.lists(bodies, max_size=2, unique=True).map(tuple),
    final=st.sampled_from([False, False, True]),
)
reports = st.lists(moves, min_size=1, max_size=3)
SLEEP = Move("sleep", "a", False, (), False)
EXPECT = [Move("expect", "a", False, opened, False) for opened in ((), ("a",), ("a", "b"))]
THEN_SUSPEND = Move("suspend", "a", False, (), False)
sloppy = st.sampled_from([False, False, False, True])


def said(move: Move, run: Run, *, sloppy: bool) -> Said:
    """The frame of a move, by a worker that knows its run; a sloppy one mixes names up."""
    attempts = {name: step.attempts for name, step in run.steps.items()}
    attempt = max(1, min(MOST, attempts.get(move.step, 0) + (not move.late)))
    begun = [opens(one, min(MOST, attempts.get(one, 0) + 1), POLICY) for one in move.opened]
    wait = ("w1", "w2", "v")[len(move.opened)]
    step = move.step
    if sloppy:
        wait = step = "nap" if move.final else "w1"
    match move.kind:
        case "begin":
            return (BEGIN, *begun)
        case "done":
            return (done(step, attempt, f'"{step}{attempt}"', POLICY), *begun)
        case "failed":
            return (failed(step, attempt, POLICY, final=move.final), *begun)
        case "sleep":
            return (sleeps("nap", NAP), *begun)
        case "expect":
            return (expects(wait, TYPES.get(wait, "go"), TIMEOUT), *begun)
        case "suspend":
            return (SUSPEND,)
        case _:
            return (Finish(failure=Failure("Boom", "no")) if move.final else FINISH,)


def told(news: News) -> Answered:
    """An answer as the model gives it."""
    frames = tuple((str(one.verdict), one.refusal is not None, one.released) for one in news.answers)
    return Answered(frames, news.stale is not None)
