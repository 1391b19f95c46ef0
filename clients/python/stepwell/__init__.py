"""Stepwell: durable workflows, hooks and jobs over one small server.

Write a workflow (`WorkflowEntrypoint`, `@workflow`), host it (`Worker`), start it and wait for it (`Client`). The
generated stubs are in `stepwell.v1`.
"""

from stepwell.alarms import Alarm, LoopAlarm
from stepwell.channel import open_channel
from stepwell.client import Client
from stepwell.dispatchers import AlarmDispatcher, PollingDispatcher, StreamDispatcher
from stepwell.errors import (
    CallFailed,
    DuplicateStepKey,
    InvalidStepName,
    MaxStepsExceeded,
    NonRetryableError,
    PayloadInvalid,
    StepFailed,
    StepMaxAttemptsExceeded,
    StepMisused,
    StepResultInvalid,
    StepTimeoutError,
    StepTypeMismatch,
    WaitForEventTimeoutError,
    WorkflowEnded,
    WorkflowFailed,
    WorkflowTerminated,
    failure_of,
)
from stepwell.instances import Instance, NewInstance, Workflow
from stepwell.processors import NextWake, Processor, ProcessorGroup, ProcessorsFailed, ServerProcessor, Unserved
from stepwell.retry import Retry
from stepwell.statuses import (
    ErrorInfo,
    EventEntry,
    HistoryEntry,
    InstanceChange,
    InstanceStatus,
    Status,
    StepEntry,
    StepStatus,
    StepType,
)
from stepwell.steps import ReceivedEvent, WorkflowStep
from stepwell.worker import Worker
from stepwell.workflows import App, WorkflowDefinition, WorkflowEntrypoint, WorkflowEvent, workflow

__version__ = "0.1.0"

__all__ = [
    "Alarm",
    "AlarmDispatcher",
    "App",
    "CallFailed",
    "Client",
    "DuplicateStepKey",
    "ErrorInfo",
    "EventEntry",
    "HistoryEntry",
    "Instance",
    "InstanceChange",
    "InstanceStatus",
    "InvalidStepName",
    "LoopAlarm",
    "MaxStepsExceeded",
    "NewInstance",
    "NextWake",
    "NonRetryableError",
    "PayloadInvalid",
    "PollingDispatcher",
    "Processor",
    "ProcessorGroup",
    "ProcessorsFailed",
    "ReceivedEvent",
    "Retry",
    "ServerProcessor",
    "Status",
    "StepEntry",
    "StepFailed",
    "StepMaxAttemptsExceeded",
    "StepMisused",
    "StepResultInvalid",
    "StepStatus",
    "StepTimeoutError",
    "StepType",
    "StepTypeMismatch",
    "StreamDispatcher",
    "Unserved",
    "WaitForEventTimeoutError",
    "Worker",
    "Workflow",
    "WorkflowDefinition",
    "WorkflowEnded",
    "WorkflowEntrypoint",
    "WorkflowEvent",
    "WorkflowFailed",
    "WorkflowStep",
    "WorkflowTerminated",
    "failure_of",
    "open_channel",
    "workflow",
]
