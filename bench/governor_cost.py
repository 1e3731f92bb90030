"""`python -m bench.governor_cost`: what deciding costs a round, in processor time, without a model.

Real texts (those of the tests) are decoded again with the n-gram lookup and the measuring governor,
and simulated times for the steps. Counted is the processor time of everything that a round does for
speculation: looking up, choosing and proposing before the step, reporting and taking back after it.
Cold: the processor's caches are overwritten before either part, as a step does with its weights;
warm: they are not. A real step lies between the two.

    idle     a plain round in which the lookup finds nothing
    offer    a plain round although it found something
    spoken   a round with a proposal
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from homespecd.drafters.ngram import NgramDrafter
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Choice, RoundRecord, Situation, SpeculationMode
from tests.fakes import drive
from tests.governor_texts import INT4_EXACT, Text, real_texts

NAME, MAX_K = "ngram", 16
# More than the caches of the machines that this runs on.
CACHES_BYTES = 64 << 20
OVERHEAD_MS = 0.15


@dataclass(frozen=True)
class Before:
    """What a round decided before its step."""

    choice: Choice
    offered: int
    foreseen: int | None
    proposal: tuple[int, ...]


class Decoding:
    """One request, decoded by what is known to come."""

    def __init__(self, governor: MeasuredGovernor, request: int, text: Text) -> None:
        self._governor = governor
        self._request = request
        self._answer = text.answer
        self._lookup = NgramDrafter(NAME)
        self.committed = list(text.prompt)
        self._length = len(text.prompt)

    @property
    def position(self) -> int:
        return len(self.committed) - self._length

    @property
    def over(self) -> bool:
        return self.position >= len(self._answer)

    def before(self, now_s: float) -> Before:
        committed, room = self.committed, len(self._answer) - self.position
        offered = self._lookup.expected_length(committed, min(room - 1, MAX_K))
        match = self._lookup.match_length
        choice = self._governor.choose(
            now_s,
            Situation(
                request=self._request,
                mode=SpeculationMode.AUTO,
                context=len(committed),
                catch_up=0,
                room=room,
                offers={NAME: offered},
                matches={NAME: match} if match else {},
            ),
        )
        if not choice.k:
            return Before(choice, offered, self._lookup.foresee(committed), ())
        proposal = drive(self._lookup.propose(committed, choice.k, _no_draw)).tokens
        return Before(choice, offered, None, proposal)

    def after(self, now_s: float, asked: Before, accepted: int, step_ms: float) -> None:
        context, position = len(self.committed), self.position
        tokens = self._answer[position : position + accepted + 1]
        self.committed.extend(tokens)
        self._lookup.rewind(context + accepted)
        foreseen = {} if asked.foreseen is None else {NAME: asked.foreseen == tokens[0]}
        rows = 1 + len(asked.proposal)
        self._governor.observe(
            RoundRecord(
                request=self._request,
                at_s=now_s,
                choice=asked.choice,
                context=context,
                catch_up=0,
                rows=rows,
                total_rows=rows,
                lanes=1,
                proposed=len(asked.proposal),
                accepted=accepted,
                committed=len(tokens),
                draft_ms=0.02 if asked.proposal else 0.0,
                step_ms=step_ms,
                wall_ms=step_ms + OVERHEAD_MS,
                foreseen=foreseen,
            )
        )

    def accepted(self, proposal: Sequence[int]) -> int:
        right = 0
        for token, own in zip(proposal, self._answer[self.position :], strict=False):
            if token != own:
                break
            right += 1
        return right


def measure(texts: Sequence[Text], *, turns: int, cold: bool) -> dict[str, list[float]]:
    """Kind of round → microseconds of each."""
    waste = np.zeros(CACHES_BYTES if cold else 64, dtype=np.uint8)
    curve_rows, curve_ms = list(INT4_EXACT), list(INT4_EXACT.values())
    governor = MeasuredGovernor([DrafterSpec(NAME, MAX_K)], step_ms=INT4_EXACT)
    times: dict[str, list[float]] = {"idle": [], "offer": [], "spoken": []}
    now_s, request, clock = 0.0, 0, time.thread_time_ns
    for _ in range(turns):
        for text in texts:
            request, now_s = request + 1, now_s + 3.0
            one = Decoding(governor, request, text)
            while not one.over:
                waste[::64] += 1
                began_ns = clock()
                asked = one.before(now_s)
                spent_ns = clock() - began_ns
                accepted = one.accepted(asked.proposal)
                step_ms = float(np.interp(1 + len(asked.proposal), curve_rows, curve_ms))
                now_s += step_ms / 1e3
                waste[::64] += 1
                began_ns = clock()
                one.after(now_s, asked, accepted, step_ms)
                spent_ns += clock() - began_ns
                kind = "spoken" if asked.proposal else "offer" if asked.offered else "idle"
                times[kind].append(spent_ns / 1e3)
    return times


def _no_draw(logits: object, sequence: object) -> tuple[int, None]:
    raise AssertionError(f"a lookup draws nothing: {logits}, {sequence}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.governor_cost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    texts = real_texts("int4")
    result = {}
    for cold in (False, True):
        name = "cold" if cold else "warm"
        times = measure(texts, turns=arguments.turns, cold=cold)
        result[name] = {
            kind: {
                "rounds": len(own),
                "mean_us": round(statistics.fmean(own), 1),
                "median_us": round(statistics.median(own), 1),
            }
            for kind, own in times.items()
            if own
        }
        if not arguments.json:
            for kind, one in result[name].items():
                print(f"{name} {kind:7}", "  ".join(f"{key} {one[key]:g}" for key in one))
    if arguments.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
