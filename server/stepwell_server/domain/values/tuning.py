"""Pauses and bounds of a server that its operator does not set."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Holds every pause and bound that belongs to neither the contract nor the settings.

    One object per server, handed in where the server is put together. Times are seconds of real time.
    """

    # database
    transactions: int = 1000
    """Most transactions at once, without those of the server itself."""
    pool_timeout: float = 2.0
    """Longest wait for a connection of PostgreSQL."""
    ping_timeout: float = 2.0
    """After a ping that takes longer, hints count as lost."""
    deaf_timeout: float = 10.0
    """After a ping that takes longer, the connection for hints is replaced."""

    # committer
    inbox_items: int = 10_000
    inbox_bytes: int = 64 * 1024 * 1024
    group_calls: int = 500
    group_items: int = 2000
    group_bytes: int = 4 * 1024 * 1024
    shared_for: float = 0.1
    """Time for which shares stay small after one namespace, or one caller, sent behind another."""

    # hand-out and connections
    claim_pause: float = 0.025
    """Pause after a claim that got nothing although something was due. It doubles until something changes."""
    question_retry: float = 1.0
    """Pause before a question about a held task is repeated, after the database gave no answer."""
    report_retry: float = 0.1
    """First pause before a call of a connection is repeated. It doubles."""
    waiting_bytes: int = 16 * 1024 * 1024
    """Frames of one worker that may wait for the database. While there are more, its stream is not read."""
    strange_reports: int = 100
    """Reports about leases that the worker lacks, which may wait for the database."""
    part_messages: int = 100
    """Most messages that a stream takes out of its outbox at once."""

    # loops
    sweep_interval: float = 5.0
    gone_after: float = 60.0
    """Time in touch with the database before a replica decides that a worker has gone. After a start or an outage all
    workers are on their way back."""
    prune_interval: float = 600.0
    prune_batch: int = 1000
    wake_spacing: float = 0.05
    """Shortest time between two questions for the next wakes. Its own commits a replica knows at once."""
    wake_conflation: float = 0.02
    """Time for which changes are collected before followers get the newest wake."""
    drain_wait: float = 1.0
    """Longest wait of a call that begins while the replica drains, so that clients do not poll in a tight loop."""
    longest_advance: float = 20.0
    """Time after which AdvanceClock answers, wherever it is."""

    # streams
    policy_deadline: float = 10.0
    """Time for the policy to authenticate a caller."""
    policy_interval: float = 60.0
    """Time after which the policy is asked again about the caller of an open stream."""
    write_timeout: float = 10.0
    """Time for a peer to read a message."""
    hello_timeout: float = 10.0
    """Time for the hello of a worker's stream."""
    handshake_timeout: float = 10.0
    """Time for a new connection to speak HTTP/2."""
    keepalive: float = 10.0
    """Time after which a stream without news gets a message all the same."""
    frames_per_second: int = 20_000
    """Frames that a worker may send."""
    most_followed: int = 10_000
    """Instances that one stream may follow."""


DEFAULT = Tuning()
