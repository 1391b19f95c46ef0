"""The layers around every call: logs and metrics, errors, authorisation, admission, deadlines, parsing.

Each concern is one async context manager around the call, written once for unary calls and streams. `Pipeline` nests
them in the order of `layers()`. It reads and parses the raw bytes itself, and hands the servicer a checked message:
grpc.aio would read the message of a unary call first, and answer an undecodable one with UNKNOWN and the text of
the exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import structlog
from google.protobuf.message import Message
from grpc import HandlerCallDetails, StatusCode, aio

from stepwell_server.api.edge.access import (
    ASKING_METHODS,
    KNOWN_METHODS,
    NAMESPACE_FIELDS,
    OPEN_METHODS,
    QUIET_METHODS,
    WAITING_METHODS,
    Policy,
)
from stepwell_server.api.edge.admission import Admission
from stepwell_server.api.edge.calls import Call, Context, current
from stepwell_server.api.edge.errors import DETAILS_KEY, code_of, to_status
from stepwell_server.api.edge.messages import Messages
from stepwell_server.api.edge.parsing import Parser
from stepwell_server.api.edge.shares import Shares, Turn
from stepwell_server.domain.namespaces import DEFAULT_NAMESPACE
from stepwell_server.domain.values.errors import ServerDeadline, StepwellError
from stepwell_server.domain.values.times import LONGEST_WAIT, SECOND
from stepwell_server.domain.values.tuning import DEFAULT, Tuning
from stepwell_server.telemetry import Metrics

Layer: TypeAlias = Callable[[Call], AbstractAsyncContextManager[None]]
Handler: TypeAlias = Any  # grpc's RpcMethodHandler, whose shape its type stubs do not tell

LOG_ID_KEY = "x-request-id"
_LONGEST_LOG_ID = 64
_UNASKED = OPEN_METHODS | KNOWN_METHODS | ASKING_METHODS

log = structlog.get_logger()


class Pipeline(aio.ServerInterceptor):
    """Wraps every method once, with all layers around it."""

    def __init__(
        self, layers: list[Layer], policy: Policy, messages: Messages, parser: Parser, tuning: Tuning = DEFAULT
    ) -> None:
        self._layers = layers
        self._policy = policy
        self._messages = messages
        self._parser = parser
        self._tuning = tuning
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Callable[[HandlerCallDetails], Awaitable[Any]], details: HandlerCallDetails
    ) -> Any:
        """The handler with everything around it; None for a method that does not exist."""
        method = details.method
        if method not in self._wrapped:
            handler = await continuation(details)
            if handler is None:
                return None
            self._wrapped[method] = self._wrap(handler, method)
        return self._wrapped[method]

    def _wrap(self, handler: Handler, method: str) -> Handler:
        """The handler as one that reads a stream, whatever it is: a single message is read from it in here."""
        if handler.response_streaming:
            serve, shape = self._stream(handler, method), "stream_stream"
        else:
            serve, shape = self._unary(handler, method), "stream_unary"
        return handler._replace(request_streaming=True, request_deserializer=None, **{shape: serve})

    def _unary(self, handler: Handler, method: str) -> Any:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def serve(raw: Any, context: Context) -> Any:
            async with self._around(
                Call(method, handler.request_streaming, context, self._policy, self._tuning)
            ) as call:
                return await inner(await self._request(handler, raw, call), context)

        return serve

    def _stream(self, handler: Handler, method: str) -> Any:
        inner = handler.stream_stream if handler.request_streaming else handler.unary_stream

        async def serve(raw: Any, context: Context) -> Any:
            async with self._around(self._call(method, True, context)) as call:
                request = await self._request(handler, raw, call)
                call.turn.drop()  # what is answered from now on has no end
                # With the first message they would be sent a second time if it is cut off: the status would be lost.
                await context.send_initial_metadata(())
                answer = inner(request, context)
                if isinstance(answer, Awaitable):  # a servicer that writes to the context itself, as health's Watch
                    await answer
                    return
                async for response in answer:
                    yield response

        return serve

    def _call(self, method: str, streaming: bool, context: Context) -> Call:
        return Call(method, streaming, context, self._policy, self._tuning)

    @asynccontextmanager
    async def _around(self, call: Call) -> AsyncIterator[Call]:
        current.set(call)
        async with AsyncExitStack() as stack:
            for layer in self._layers:
                await stack.enter_async_context(layer(call))
            yield call

    async def _request(self, handler: Handler, raw: AsyncIterator[bytes], call: Call) -> Any:
        if handler.request_streaming:
            _permit(call, "")
            return _parsed_stream(self._parser, handler, raw, call.turn)
        message = await self._parser.parse(handler.request_deserializer, await self._only_message(call))
        _permit(call, _namespace(call.method, message))
        return message

    async def _only_message(self, call: Call) -> bytes:
        """The message of a call that has one, once it is its turn."""
        message = await self._messages.read(call)
        await call.turn.take()
        return message


def _permit(call: Call, namespace: str) -> None:
    """Ask the policy, unless the method is open to every caller, or asks by itself."""
    if call.method not in _UNASKED:
        call.permit(namespace)


async def _parsed_stream(
    parser: Parser, handler: Handler, raw: AsyncIterator[bytes], turn: Turn
) -> AsyncIterator[Message]:
    """Messages of a stream. Their servicer checks them part by part: one bad frame is refused, and the rest counts.

    A message is in work until its servicer asks for the next one.
    """
    try:
        async for item in raw:
            await turn.take()
            message = await parser.decode(handler.request_deserializer, item)
            del item
            yield message
            del message
            turn.drop()
    except aio.BaseError as error:  # gRPC has ended the stream, because its server stops
        log.debug("stream_cut", error=type(error).__name__)


def _namespace(method: str, message: Message) -> str:
    """The namespace that a request is about; empty for one about the server."""
    introduced: Any = getattr(message, "hello", message)
    field = NAMESPACE_FIELDS.get(method, "namespace")
    if field not in introduced.DESCRIPTOR.fields_by_name:
        return ""
    return str(getattr(introduced, field)) or DEFAULT_NAMESPACE


def layers(metrics: Metrics, admission: Admission, shares: Shares, unary_deadline: float) -> list[Layer]:
    """All layers, the outermost first."""
    return [observed(metrics), translated, authenticated, admission.layer, shared(shares), timely(unary_deadline)]


def observed(metrics: Metrics) -> Layer:
    """Log and measure each call, whatever becomes of it."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        call.log_id = _log_id(call)
        began = time.monotonic()
        shape = "stream" if call.streaming else "unary"
        metrics.in_flight.labels(shape).inc()
        with structlog.contextvars.bound_contextvars(log_id=call.log_id):
            try:
                yield
            except (asyncio.CancelledError, GeneratorExit):
                call.code = StatusCode.CANCELLED
                raise
            finally:
                seconds = time.monotonic() - began
                metrics.in_flight.labels(shape).dec()
                metrics.calls.labels(call.method, call.code.name).observe(seconds)
                if call.code is StatusCode.INTERNAL:
                    metrics.internal_errors.inc()
                write = log.debug if call.method in QUIET_METHODS else log.info
                write("call", method=call.method, code=call.code.name, ms=round(seconds * 1000, 1))

    return layer


@asynccontextmanager
async def translated(call: Call) -> AsyncIterator[None]:
    """Turn domain errors into statuses, and everything else into INTERNAL without a word of its text."""
    try:
        yield
    except StepwellError as error:
        await _abort(call, error)
    except aio.AbortError:  # a servicer of grpc's own packages refused
        call.code = _code(call.context)
        raise
    except aio.InternalError:  # gRPC could not write: the reader has left, and this was noticed before the cancellation
        raise asyncio.CancelledError from None
    except Exception:
        log.exception("call_failed", method=call.method)
        await _abort(call, call.broken())


@asynccontextmanager
async def authenticated(call: Call) -> AsyncIterator[None]:
    """Find out who calls."""
    await call.authenticate()
    yield


def shared(shares: Shares) -> Layer:
    """Have the messages of a call take turns with those of others. Health is always let in: busy is not dead."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        if call.method not in OPEN_METHODS:
            call.turn = Turn(shares, call.principal.name)
        try:
            yield
        finally:
            call.turn.drop()

    return layer


def timely(deadline: float) -> Layer:
    """Give a unary call that brings no deadline the server's own; one that may wait gets that on top."""

    @asynccontextmanager
    async def layer(call: Call) -> AsyncIterator[None]:
        if call.streaming or call.context.time_remaining() is not None:
            yield
            return
        longest = deadline + (LONGEST_WAIT / SECOND if call.method in WAITING_METHODS else 0.0)
        try:
            async with asyncio.timeout(longest) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise ServerDeadline("the call took too long; bring a deadline of your own", limit=longest) from None

    return layer


async def _abort(call: Call, error: StepwellError) -> None:
    call.code = code_of(error)
    status = to_status(error)
    trailer = ((DETAILS_KEY, status.SerializeToString()), (LOG_ID_KEY, call.log_id))
    await call.context.abort(call.code, status.message, trailing_metadata=trailer)


def _code(context: Context) -> StatusCode:
    number: Any = context.code()  # grpc.aio keeps the number, not the enum
    return next(code for code in StatusCode if code.value[0] == number)


def _log_id(call: Call) -> str:
    """The caller's own id for this call, if it is one that a log can hold."""
    given = call.caller.metadata.get(LOG_ID_KEY, "")
    if isinstance(given, str) and 0 < len(given) <= _LONGEST_LOG_ID and given.isascii() and given.isprintable():
        return given
    return call.log_id
