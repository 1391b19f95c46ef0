"""The steps of a run: those that are done, and those that the server keeps for later."""

from __future__ import annotations

from stepwell.errors import InvalidStepName, MaxStepsExceeded, StepTypeMismatch, from_failure
from stepwell.v1 import workers_pb2 as pb
from stepwell.v1 import workflows_pb2 as states
from stepwell.v1.common_pb2 import Failure, Payload

_NAME_CHARACTERS = 256
_FINISHED = (states.STEP_STATUS_COMPLETED, states.STEP_STATUS_ERRORED)
# In what order a step goes through its states, for the same number of executions.
_PROGRESS = {
    states.STEP_STATUS_WAITING: 1,
    states.STEP_STATUS_PENDING: 2,
    states.STEP_STATUS_COMPLETED: 3,
    states.STEP_STATUS_ERRORED: 3,
}


class StepRecords:
    """Steps by name, counted as the server counts them: sleeps not, cached ones once."""

    __slots__ = ("_counted", "_states", "bytes")

    def __init__(self) -> None:
        self.bytes = 0  # about: what was known before of a step counts, too
        self._states: dict[str, pb.StepState] = {}
        self._counted: set[str] = set()

    def put(self, state: pb.StepState) -> None:
        """Take over what is known of a step from now on."""
        self._states[state.name] = state
        self.bytes += state.ByteSize()
        if state.type != states.STEP_TYPE_SLEEP:
            self._counted.add(state.name)

    def get(self, name: str) -> pb.StepState | None:
        """The known state of a step."""
        return self._states.get(name)

    def is_news(self, state: pb.StepState) -> bool:
        """Whether a state is newer than what is known. After a reconnect the server repeats all that may be lost."""
        known = self._states.get(state.name)
        return known is None or _progress(state) > _progress(known)

    def contradicts(self, state: pb.StepState) -> bool:
        """Whether the function has gone on with an end that the server did not take, as it came after the timeout."""
        known = self._states.get(state.name)
        if known is None or not is_finished(known) or state.attempts < known.attempts:
            return False
        return state.status != known.status

    def attempts(self, name: str) -> int:
        """How many executions of a step have begun."""
        known = self._states.get(name)
        return 0 if known is None else known.attempts

    def recall(self, name: str, type: states.StepType.ValueType, max_steps: float) -> pb.StepState | None:
        """The known state of a step that the function asks for. Raises if the function may not ask for it."""
        known = self._states.get(name)
        if known is not None:
            if known.type != type:
                raise StepTypeMismatch(f"the step {name!r} is a {_word(known.type)}, not a {_word(type)}")
            return known
        if not _is_name(name):
            raise InvalidStepName(f"a step name is text of 1 to {_NAME_CHARACTERS} characters: {name!r:.80}")
        if type != states.STEP_TYPE_SLEEP:
            if len(self._counted) >= max_steps and name not in self._counted:
                raise MaxStepsExceeded(f"a run has at most {max_steps:.0f} steps")
            self._counted.add(name)
        return None


def is_finished(state: pb.StepState) -> bool:
    """Whether a step is over, one way or the other."""
    return state.status in _FINISHED


def result_of(state: pb.StepState) -> pb.StepState:
    """A finished step's record; raises what it failed with."""
    if state.status == states.STEP_STATUS_ERRORED:
        raise from_failure(state.failure)
    return state


def completed(name: str, attempts: int, result: Payload | None) -> pb.StepState:
    """The record of a step whose body returned."""
    status = states.STEP_STATUS_COMPLETED
    return pb.StepState(name=name, type=states.STEP_TYPE_DO, status=status, attempts=attempts, result=result)


def unfinished(name: str, type: states.StepType.ValueType, attempts: int) -> pb.StepState:
    """The record of a step that goes on when the server says so."""
    return pb.StepState(name=name, type=type, status=states.STEP_STATUS_WAITING, attempts=attempts)


def errored(name: str, attempts: int, failure: Failure) -> pb.StepState:
    """The record of a step that failed for good."""
    status = states.STEP_STATUS_ERRORED
    return pb.StepState(name=name, type=states.STEP_TYPE_DO, status=status, attempts=attempts, failure=failure)


def type_of(wait: pb.Wait) -> states.StepType.ValueType:
    """The type of step that a wait is."""
    return states.STEP_TYPE_WAIT_FOR_EVENT if wait.HasField("event") else states.STEP_TYPE_SLEEP


def _progress(state: pb.StepState) -> tuple[int, int]:
    return state.attempts, _PROGRESS.get(state.status, 0)


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARACTERS or "\0" in name:
        return False
    try:
        return bool(name.encode())
    except UnicodeEncodeError:  # a lone surrogate, which the wire cannot carry
        return False


def _word(type: states.StepType.ValueType) -> str:
    return states.StepType.Name(type).removeprefix("STEP_TYPE_").lower()
