"""Stepwell: durable workflows, hooks and jobs over one small server.

Write a workflow (`WorkflowEntrypoint`, `@workflow`) or a hook (`@hook`), host it (`Worker`), start and follow it
(`Client`). The generated stubs are in `stepwell.v1`.
"""

from stepwell.apps import App
from stepwell.client.channel import open_channel
from stepwell.client.client import Client
from stepwell.client.transactions import Transaction
from stepwell.dispatcher.alarms import Alarm, LoopAlarm
from stepwell.dispatcher.dispatchers import AlarmDispatcher, PollingDispatcher, StreamDispatcher
from stepwell.dispatcher.processors import (
    NextWake,
    Processor,
    ProcessorGroup,
    ProcessorsFailed,
    ServerProcessor,
    Unserved,
)
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
from stepwell.hooks.definition import HookDefinition, hook
from stepwell.hooks.handle import Hook, NewHook, TriggeredHook
from stepwell.hooks.info import HookInfo, HookStatus, HookTarget
from stepwell.retry import Retry
from stepwell.version import __version__ as __version__
from stepwell.views import Failure
from stepwell.worker.worker import Worker
from stepwell.workflows.definition import WorkflowDefinition, WorkflowEntrypoint, WorkflowEvent, workflow
from stepwell.workflows.handle import Instance, NewInstance, Workflow
from stepwell.workflows.info import (
    EventEntry,
    HistoryEntry,
    InstanceChange,
    InstanceInfo,
    InstanceStatus,
    StepEntry,
    StepStatus,
    StepType,
)
from stepwell.workflows.steps import ReceivedEvent, WorkflowStep

__all__ = [
    "Alarm",
    "AlarmDispatcher",
    "App",
    "CallFailed",
    "Client",
    "DuplicateStepKey",
    "EventEntry",
    "Failure",
    "HistoryEntry",
    "Hook",
    "HookDefinition",
    "HookInfo",
    "HookStatus",
    "HookTarget",
    "Instance",
    "InstanceChange",
    "InstanceInfo",
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
