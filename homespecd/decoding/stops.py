"""Stop strings in a stream of text.

Text is let through as soon as it can no longer be part of a stop string, and no sooner: what is
held back is the longest end of the text that begins one. The result does not depend on how the text
is cut into pieces, so it does not depend on tokens or blocks either.
"""

from __future__ import annotations

from collections.abc import Sequence

from homespecd.errors import RequestError


class StopStrings:
    """Cuts one answer before the first stop string.

    First is the one that is complete at the earliest character; of those that end at the same one,
    the one that began earliest. So a match is known the moment it is there: waiting for a longer
    one that began before it would cost tokens that nobody sees.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise RequestError("a stop string is empty", param="stop")
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Add text; what may be emitted now. Nothing, from the first match on."""
        if self.matched is not None:
            return ""
        # A match cannot lie in what was emitted: its beginning would have been held back.
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, self.matched = min(found)
            self._held = ""
            return text[:start]
        cut = len(text) - self._pending(text)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The text is over: release what was held back, since it did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _pending(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
