"""Images: what a replica knows of a run that one of its workers holds, and what may be decided by that alone.

An image is the task of a run without waits, as it was last written. It says all that a report of plain results needs:
whatever changes the run otherwise changes the fence, the revision, the frame number, the status, `stop` or `wake_again`
of the stored task, and the write tests those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell_server.domain.spine.frames import Frame, FrameAnswer
from stepwell_server.domain.spine.tasks import Stop, Task, TaskStatus
from stepwell_server.domain.workflows.instances import Step, StepStatus, StepType
from stepwell_server.domain.workflows.runs import Run


def is_image(run: Run) -> bool:
    """Whether the task of a run says all that a report of plain results needs: it is held, and nothing waits."""
    task = run.task
    is_free = task.stop is Stop.NONE and not task.wake_again and run.ending is None
    return task.status is TaskStatus.PROCESSING and is_free and not run.waits()


def is_plain(run: Run, before: Task, frames: Sequence[Frame], answers: Iterable[FrameAnswer]) -> bool:
    """Whether frames have made nothing of a run but first results, executions that begin, and its end."""
    if run.is_contradicted or run.has_parked or run.asked_again or run.delivered or run.received:
        return False
    if any(opening.attempt > 1 for frame in frames for opening in frame.opens):
        return False  # an earlier one has left a step
    is_taken = all(answer.refusal is None for answer in answers)
    return is_taken and _is_advanced(before, run.task) and all(map(_is_first_result, run.changed.values()))


def steps_named(frames: Iterable[Frame]) -> set[str]:
    """The steps that frames are about."""
    named = {frame.body.step_name for frame in frames} | {one.name for frame in frames for one in frame.opens}
    return {name for name in named if name is not None}


def _is_first_result(step: Step) -> bool:
    is_result = step.type is StepType.DO and step.status is StepStatus.COMPLETED and step.failure is None
    return is_result and step.attempts == 1 and step.position == step.revision and not step.trace


def _is_advanced(before: Task, after: Task) -> bool:
    """Whether a task differs in nothing but what frames of its holder advance."""
    return before == after._replace(
        frame_number=before.frame_number,
        revision=before.revision,
        open_steps=before.open_steps,
        step_count=before.step_count,
        interruptions=before.interruptions,
        acked=before.acked,
        locked_until=before.locked_until,
    )
