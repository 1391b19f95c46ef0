"""Reading what workers report, a part at a time, with the server's limits and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.v1 import common_pb2, workers_pb2
from stepwell_server.api.wire import common as convert
from stepwell_server.domain.values.limits import Limits
from stepwell_server.domain.values.payloads import Payload
from stepwell_server.domain.values.retry import StepPolicy
from stepwell_server.engine.spine.turns import Turns


@dataclass(frozen=True, slots=True)
class Reader:
    """The means to read the bodies of frames."""

    limits: Limits
    default: StepPolicy
    """How steps are executed of which nothing is said."""
    turns: Turns

    async def payload(self, field: str, payload: common_pb2.Payload) -> Payload | None:
        """A payload that keeps the limits. None: there is none."""
        read = convert.payload_from_pb(payload)
        if read is None:
            return None
        limits = self.limits
        await self.turns.work(read.scan(field, most_bytes=limits.payload_bytes, deepest=limits.payload_depth))
        return read

    def policy(self, policy: workers_pb2.StepPolicy) -> StepPolicy:
        """How a step is executed, with the defaults where nothing is said."""
        default = self.default
        if not policy.HasField("retry") and not policy.HasField("timeout"):
            return default
        retry = convert.retry_from_pb(policy.retry, default.retry)
        has_timeout = policy.HasField("timeout")
        timeout = default.timeout
        if has_timeout:
            timeout = convert.duration_within("timeout", policy.timeout, self.limits.timer)
        return StepPolicy(retry, timeout)
