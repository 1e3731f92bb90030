"""A row of logits that lies elsewhere, as far as whoever chooses a token needs to know."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class DistantRow(Protocol):
    """Asking for a few numbers of it is cheaper than having it. Both methods raise ModelError when
    the device fails."""

    def top(
        self, width: int, count: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None:
        """The `count` highest of the first `width` logits: ascending ids, and the values of these.

        For a count of 1 the lowest id among equals. None where that is not to be had as surely as
        from the row itself: a NaN among them, a tie at the edge, more than can be asked for.
        """
        ...

    def whole(self) -> npt.NDArray[np.float32]:
        """float32 [vocab]."""
        ...
