"""What a constraint on the text must be able to say; `decoding.grammar` has the one there is.

A constraint judges positions, not a text in the making: every question comes with the sequence that
precedes the position, so a block with a proposal in it needs nothing special, and what was rejected
was never told to anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # the supervisor reads requests, and has no numbers to work on
    import numpy as np
    import numpy.typing as npt

# White space between the parts of JSON: enough for pretty printing, not enough to go on for ever.
JSON_BLANKS = r"[ \t\n\r]{1,32}"


@dataclass(frozen=True)
class GrammarSpec:
    """What the text must be.

    kind: "json" (text is a JSON schema) or "grammar" (llguidance's Lark, or llama.cpp's GBNF).
    param: the request's parameter that asks for it, for messages.
    """

    kind: Literal["json", "grammar"]
    text: str
    param: str


class Constraint(Protocol):
    """Which token may come next. Sequences may come in any order."""

    def impossible(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """Ids that must not follow `tokens` (prompt and output). End ids are among them unless the
        text is complete; when nothing else could follow, they are all that is left.

        Raises:
            RequestError: the constraint cannot be followed any further.
        """
        ...

    def possible_run(self, tokens: Sequence[int], proposal: Sequence[int]) -> int:
        """How many tokens of the proposal could follow `tokens`, one after the other."""
        ...
