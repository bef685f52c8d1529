"""Connection over arbitrary traffic: every answer reaches its own waiter."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylark.protocol.command import Command
from skylark.protocol.connection import Connection
from skylark.protocol.frame import encode_frames


class Conversation(RuleBasedStateMachine):
    """Two connections, and the bytes between them cut anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: Connection[int] = Connection()
        self.theirs: Connection[int] = Connection()
        self.wire = b""
        self.unanswered: list[Command] = []  # Requests as the other side has them.
        self.waiting: dict[int, int] = {}  # Waiter to the opaque it was given.
        self.names = 0

    @rule()
    def send(self) -> None:
        self.names += 1
        command = Command.request(1, {"name": str(self.names)})
        requests, _ = self.theirs.receive_data(self.ours.begin_request(command, self.names))
        (request,) = requests
        assert request.opaque not in self.waiting.values()
        self.waiting[self.names] = request.opaque
        self.unanswered.append(request)

    @rule(number=st.sampled_from([0, 1, 5, 2**31 - 2, 2**31 - 1]))
    def come_near_the_end_of_the_numbers(self, number: int) -> None:
        self.ours._next_opaque = number

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def answer_any(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.unanswered) - 1))
        request = self.unanswered.pop(at)
        self.wire += encode_frames([request.reply(0, request.fields["name"])])

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def deliver_some(self, data: st.DataObject) -> None:
        size = data.draw(st.integers(1, len(self.wire)))
        piece, self.wire = self.wire[:size], self.wire[size:]
        requests, answers = self.ours.receive_data(piece)
        assert requests == []
        for waiter, answer in answers:
            assert answer.remark == str(waiter)
            del self.waiting[waiter]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waiting)))
        opaque = self.waiting[waiter]
        # A number that is free again could be given out while its old answer is still on the way;
        # over 2**31 numbers that does not happen, so the test does not let it.
        self.unanswered = [r for r in self.unanswered if r.opaque != opaque]
        if self.wire:
            return
        del self.waiting[waiter]
        self.ours.forget(opaque)

    @invariant()
    def nobody_is_forgotten(self) -> None:
        assert self.ours.waiting == len(self.waiting)
        assert self.ours.violation is None

    def teardown(self) -> None:
        assert sorted(self.ours.abandon()) == sorted(self.waiting)


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConversation = Conversation.TestCase
