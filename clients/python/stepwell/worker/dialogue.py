"""The dialogue of a worker and the server about held work. No network here either.

A connection feeds `receive` with what the server says and sends what `take_frames` gives. Between two connections
frames are not kept: those that matter are unacknowledged, and `welcomed` sends them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepwell.errors import reason_name
from stepwell.logs import WARNING, log
from stepwell.v1 import workers_pb2 as pb
from stepwell.worker.held_work import HeldWork
from stepwell.worker.lease import Lease
from stepwell.worker.server_terms import origin_of, terms_of


class Dialogue:
    """The worker's side of the protocol, through every reconnect."""

    def __init__(self, held: HeldWork) -> None:
        self.held = held
        self.reconnect: Callable[[], None] = lambda: None  # called when the server must hear another Hello
        self._greeted_at = held.clock.now()

    def greets(self) -> None:
        """A Hello is about to be sent: what its Welcome lists is renewed from now on, however long that takes."""
        self._greeted_at = self.held.clock.now()

    def welcomed(self, welcome: pb.Welcome) -> bool:
        """A stream is open: drop what is lost, send again what was not acknowledged, grant credit.

        False: the server believes that the worker holds tasks that it has given up since its Hello. Another Hello must
        say so, or no worker could take them until their leases are over.
        """
        held = self.held
        terms = terms_of(welcome, self._greeted_at)
        if held.terms.database_id not in ("", terms.database_id):
            held.drop_everything()
        held.terms = terms
        held.outbox.open()
        held.leases.connecting()
        kept = {(task.task_id, task.fence) for task in welcome.held}
        for lease in held.leases:
            if (lease.task_id, lease.fence) in kept:
                lease.send_again(self._greeted_at)
            else:
                lease.drop()
        if len(held.leases) < len(kept):
            return False
        held.leases.welcomed(terms.max_credit)
        held.outbox.wake()
        return True

    def disconnected(self) -> None:
        """The stream is gone: frames are sent again when there is another."""
        self.held.outbox.close()
        self.held.turn_away()

    def take_frames(self) -> list[pb.WorkerFrame]:
        """Everything that is ready to be sent, with the credit that is due."""
        held = self.held
        frames = held.outbox.take()
        if held.is_connected and not held.is_draining and (tasks := held.leases.take_credit()):
            frames.append(pb.WorkerFrame(credit=pb.Credit(tasks=tasks)))
        return frames

    def written(self) -> None:
        """Note that the frames taken last are on their way: begin the bodies that they acknowledge.

        Not earlier: the first bodies begin before any frame names them, and if one of them kills the process, all that
        the server has to count it by is that the task had arrived.
        """
        for lease in self.held.outbox.written():
            lease.acknowledged()
        self.held.rested()

    def receive(self, frame: pb.ServerFrame) -> None:
        """Take in what the server says. Unknown frames, and those about tasks not held, are ignored."""
        match frame.WhichOneof("body"):
            case "task":
                self._take(frame)
                return
            case "heartbeat":
                self._renewed(frame.heartbeat)
                return
            case "refused":
                reason = reason_name(frame.refused.reason)
                log(WARNING, "frame_refused task_id=%s reason=%s: %s", frame.task_id, reason, frame.refused.message)
        lease = self.held.leases.of(frame.task_id)
        if lease is not None and lease.fence == frame.fence:
            lease.receive(frame)

    def heartbeat(self) -> None:
        """Renew every lease by its name, give up what was not renewed in time, ask again for what a pause holds up."""
        self.expire()
        if not self.held.is_connected:
            return
        self.held.send(pb.WorkerFrame(heartbeat=self.held.leases.beat()))
        for lease in self.held.leases:
            if lease.work is not None:
                lease.work.ask_again()

    def expire(self) -> None:
        """Stop tasks whose last renewal is so old that another worker may have them soon; say so if none is left.

        Until another Hello does, the server believes that they are held. While others are, their stream is not given up
        for that: they would be left a short grace, and the server may be deaf for longer.
        """
        lapsing = self.held.leases.lapsing(self.held.terms.holds_for)
        for lease in lapsing:
            log(WARNING, "lease_not_renewed task_id=%s", lease.task_id)
            lease.drop()
        if lapsing and not self.held.leases and self.held.is_connected:
            self.reconnect()

    def _take(self, frame: pb.ServerFrame) -> None:
        lease = self.held.leases.of(frame.task_id)
        if lease is not None and lease.fence != frame.fence:
            lease.drop()
            lease = None
        if lease is None:
            if self.held.is_draining:
                return  # not acknowledged: it goes back with our Goodbye
            lease = Lease(self.held, frame.task_id, frame.fence)
            self.held.leases.add(lease)
        lease.arrived(frame.task)

    def _renewed(self, heartbeat: pb.ServerHeartbeat) -> None:
        asked_at = self.held.leases.confirmed(heartbeat.heartbeat_number)
        if asked_at is not None:  # clocks drift apart on a stream that lasts
            self.held.terms = replace(self.held.terms, origin=origin_of(heartbeat.now, asked_at))
