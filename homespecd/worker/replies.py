"""One request's answers on their way out: the texts of its choices, and one end for all of them.

What leaves wakes the supervisor and then the client, on the very cores that compute the next token:
half a millisecond each time, a twentieth of a small model's step. So text goes out at once only if
the last piece is a while ago, and otherwise with what follows it; nobody reads faster than that.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from homespecd.decoding.call_reader import CallPiece
from homespecd.decoding.tool_calls import Part, ToolCalls
from homespecd.errors import HomespecError
from homespecd.worker.account import Account, together
from homespecd.worker.generate import Conversation
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.messages import Frame
from homespecd.worker.waiting import Outcome

Report = Callable[[Account], Mapping[str, Any]]

# Twenty-five pieces a second look like a steady flow; models slower than that are not held back.
PACE_S = 0.04


class Reply:
    """Frames for one request of `count` choices.

    Args:
        send: where frames go.
        fail: told the error that ends the request, once.
        report: the `homespec` object of an account.
        clock_s: paces the texts.
    """

    def __init__(
        self,
        request_id: int,
        count: int,
        *,
        send: Callable[[Frame], None],
        fail: Callable[[HomespecError], None],
        report: Report,
        clock_s: Callable[[], float],
    ) -> None:
        self._id = request_id
        self._send = send
        self._fail = fail
        self._report = report
        self._reasons: list[str | None] = [None] * count
        self._accounts: dict[int, Account] = {}
        self._failed = False
        self._open = count
        self._clock_s = clock_s
        self._held: dict[int, dict[str, Any]] = {}  # choice → a delta that has not gone out
        self._sent_s = float("-inf")

    def voice(self, index: int, notes: LogprobNotes | None, calls: ToolCalls | None) -> Voice:
        """How choice `index` speaks."""
        return Voice(self, index, notes, calls)

    def delta(self, index: int, text: str, tokens: int, **extras: Any) -> None:
        """What a round added to a choice."""
        held = self._held.get(index)
        if held is None:
            head = {"type": "delta", "id": self._id, "index": index}
            self._held[index] = {**head, "text": text, "tokens": tokens, **extras}
        else:
            held["text"] += text
            held["tokens"] += tokens
            for name, more in extras.items():  # lists: one entry per token, or per call
                held[name] = [*held.get(name, ()), *more]
        self.flush_if_due()

    @property
    def over(self) -> bool:
        """All choices have ended, one way or another."""
        return self._open == 0

    def flush_if_due(self) -> None:
        """Send what is held if the last piece went out a while ago."""
        if self._held and self._clock_s() - self._sent_s >= PACE_S:
            self._flush()

    def _flush(self) -> None:
        for frame in self._held.values():
            self._send(frame)
        self._held.clear()
        self._sent_s = self._clock_s()

    def ended(self, index: int, conversation: Conversation | None, outcome: Outcome) -> None:
        """A choice is complete, failed, or was cancelled (nobody is told of that)."""
        self._open -= 1
        if outcome.error is not None:
            if not self._failed:
                self._failed = True
                self._flush()
                self._fail(outcome.error)
            return
        if outcome.finish_reason is None or self._failed:
            return
        assert conversation is not None
        self._reasons[index] = outcome.finish_reason
        self._accounts[index] = conversation.account
        if None in self._reasons:
            return
        self._flush()
        account = together([self._accounts[i] for i in range(len(self._reasons))])
        self._send(
            {
                "type": "done",
                "id": self._id,
                "finish_reasons": self._reasons,
                "usage": account.usage(),
                "homespec": self._report(account),
            }
        )


class Voice:
    """One choice: what its rounds add, with everything else that the client asked to see."""

    def __init__(
        self, reply: Reply, index: int, notes: LogprobNotes | None, calls: ToolCalls | None
    ) -> None:
        self._reply = reply
        self._index = index
        self._notes = notes
        self._calls = calls

    def say(self, text: str, tokens: int) -> None:
        """What a round came to."""
        if self._notes is None and self._calls is None:
            self._reply.delta(self._index, text, tokens)
        else:
            self._say(Part(text) if self._calls is None else self._calls.push(text), tokens)

    def end(self, conversation: Conversation | None, outcome: Outcome) -> None:
        """The conversation is over."""
        if self._calls is not None and outcome.finish_reason is not None:
            rest = self._calls.finish()
            if rest != Part():
                self._say(rest, 0)
            if self._calls.count and outcome.finish_reason == "stop":
                outcome = Outcome(finish_reason="tool_calls")
        self._reply.ended(self._index, conversation, outcome)

    def _say(self, part: Part, tokens: int) -> None:
        extras: dict[str, Any] = {}
        if self._notes is not None:
            extras["logprobs"] = self._notes.take()
        if part.calls:
            extras["tool_calls"] = [_piece(one) for one in part.calls]
        self._reply.delta(self._index, part.text, tokens, **extras)


def _piece(piece: CallPiece) -> dict[str, Any]:
    """A piece of a call in a frame; the first one of a call says which and what."""
    said: dict[str, Any] = {"index": piece.index, "arguments": piece.arguments}
    if piece.name is not None:
        said |= {"id": f"call_{secrets.token_hex(12)}", "name": piece.name}
    return said
