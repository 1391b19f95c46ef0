"""How many elements each repeated field and map of a request may have. A field that is not here may have none."""

from __future__ import annotations

from collections.abc import Sized

from google.protobuf.descriptor import FieldDescriptor

from stepwell_server.domain.hooks.webhooks import MOST_SECRETS
from stepwell_server.domain.spine.wakes import MOST_NAMES
from stepwell_server.domain.values.errors import BatchTooLarge, InvalidField, InvalidRequest
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.traces import TRACE_ENTRIES
from stepwell_server.domain.workflows.instances import LABELS, LABELS_ASKED
from stepwell_server.engine.sessions import MOST_HANDLERS
from stepwell_server.engine.spine.connections import MOST_CREDIT

FIELD_COST = 4
"""A value costs as much as so many characters of JSON."""
MOST_FRAMES = 1000
MOST_COMMITTED = 100
"""Frames of a task that one call commits."""
MOST_RENEWED = 1000
MOST_TARGETS = 1000
"""Instances that one message adds to those that are followed, or takes from them."""
MOST_KINDS = 16
"""Kinds, statuses or fields to name, of which there are fewer."""
MOST_OPENS = 10_000
"""Bodies that begin with one frame. How many steps a run may have is checked when it is applied."""

MOST: dict[str, int | None] = {
    "ClaimTasksRequest.handlers": MOST_HANDLERS,
    "CommitRequest.operations": None,
    "CommitTaskRequest.frames": MOST_COMMITTED,
    "ConnectRequest.frames": MOST_FRAMES,
    "CreateInstanceRequest.labels": LABELS,
    "CreateInstanceRequest.trace": TRACE_ENTRIES,
    "CreateInstancesItem.labels": LABELS,
    "CreateInstancesItem.trace": TRACE_ENTRIES,
    "CreateInstancesRequest.items": None,
    "Heartbeat.held": MOST_CREDIT,
    "Hello.handlers": MOST_HANDLERS,
    "Hello.held": MOST_CREDIT,
    "ListHooksRequest.statuses": MOST_KINDS,
    "ListInstancesRequest.labels": LABELS_ASKED,
    "ListInstancesRequest.statuses": MOST_KINDS,
    "PutHookTargetRequest.secrets": MOST_SECRETS,
    "RenewTasksRequest.tasks": MOST_RENEWED,
    "SendEventRequest.trace": TRACE_ENTRIES,
    "SendEventsItem.trace": TRACE_ENTRIES,
    "SendEventsRequest.items": None,
    "TriggerHooksItem.trace": TRACE_ENTRIES,
    "TriggerHooksRequest.items": None,
    "WakeFilter.kinds": MOST_KINDS,
    "WakeFilter.names": MOST_NAMES,
    "WatchInstancesRequest.add": MOST_TARGETS,
    "WatchInstancesRequest.drop": MOST_TARGETS,
    "WorkerFrame.opens": MOST_OPENS,
    "google.protobuf.FieldMask.paths": MOST_KINDS,
}
"""By the names of the message and the field. None: as many as a batch may have, which operators decide."""
_BATCHES = {name for name, count in MOST.items() if count is None} | {"RenewTasksRequest.tasks"}
_PACKAGE = "stepwell.v1."


def most(field: FieldDescriptor, limits: Limits) -> int:
    """How many elements the field may have."""
    others = 0 if field.full_name.startswith(_PACKAGE) else limits.message_values
    count = MOST.get(_name(field), others)
    return limits.batch_items if count is None else count


def check_length(elements: Sized, field: FieldDescriptor, path: str, limits: Limits) -> None:
    """Refuse more elements than the field may have, whatever they are."""
    if len(elements) > most(field, limits):
        raise too_many(field, path, len(elements), limits)


def too_many(field: FieldDescriptor, path: str, size: int, limits: Limits) -> InvalidRequest:
    """The refusal of a field with so many elements, or more: counting stops where there are too many."""
    limit = most(field, limits)
    refusal = BatchTooLarge if _name(field) in _BATCHES else InvalidField
    return refusal(f"{path} has more than {limit} elements", field=path, size=size, limit=limit)


def _name(field: FieldDescriptor) -> str:
    return field.full_name.removeprefix(_PACKAGE)
