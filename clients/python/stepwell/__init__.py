"""Stepwell: durable workflows, hooks and jobs over one small server.

Write a workflow (`WorkflowEntrypoint`, `@workflow`) or a hook (`@hook`), host it (`Worker`), start and follow it
(`Client`). The generated stubs are in `stepwell.v1`.
"""

from stepwell.alarms import Alarm, LoopAlarm
from stepwell.apps import App
from stepwell.channel import open_channel
from stepwell.client import Client
from stepwell.dispatchers import AlarmDispatcher, PollingDispatcher, StreamDispatcher
from stepwell.errors import (
    CallFailed,
    DuplicateStepKey,
    InvalidStepName,
    JobTimeoutError,
    MaxStepsExceeded,
    NonRetryableError,
    PayloadInvalid,
    StepFailed,
    StepMaxAttemptsExceeded,
    StepMisused,
    StepResultInvalid,
    StepTimeoutError,
    StepTypeMismatch,
    TransactionRefused,
    WaitForEventTimeoutError,
    WorkflowEnded,
    WorkflowFailed,
    WorkflowTerminated,
    failure_of,
)
from stepwell.handlers import JobContext
from stepwell.hooks import HookDefinition, hook
from stepwell.instances import Instance, NewInstance, Workflow
from stepwell.processors import NextWake, Processor, ProcessorGroup, ProcessorsFailed, ServerProcessor, Unserved
from stepwell.retry import Retry
from stepwell.statuses import (
    ErrorInfo,
    EventEntry,
    HistoryEntry,
    HookState,
    HookStatus,
    HookTarget,
    InstanceChange,
    InstanceStatus,
    Status,
    StepEntry,
    StepStatus,
    StepType,
)
from stepwell.steps import ReceivedEvent, WorkflowStep
from stepwell.transactions import Transaction
from stepwell.triggers import Hook, NewHook, TriggeredHook
from stepwell.worker import Worker
from stepwell.workflows import WorkflowDefinition, WorkflowEntrypoint, WorkflowEvent, workflow

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
    "Hook",
    "HookDefinition",
    "HookState",
    "HookStatus",
    "HookTarget",
    "Instance",
    "InstanceChange",
    "InstanceStatus",
    "InvalidStepName",
    "JobContext",
    "JobTimeoutError",
    "LoopAlarm",
    "MaxStepsExceeded",
    "NewHook",
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
    "Transaction",
    "TransactionRefused",
    "TriggeredHook",
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
    "hook",
    "open_channel",
    "workflow",
]
