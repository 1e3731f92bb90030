"""Whether a device went away under a model: unplugged, reset, or not there after a suspend.

What a process had on it is gone for good, and no call to the same context succeeds again. So the
worker ends, and the next one opens the model wherever it can then, and says where that is.
"""

from __future__ import annotations

from homespecd.errors import ModelError


class LostDevice:
    """What the failures so far say. `reason` is "" until a device is lost."""

    def __init__(self) -> None:
        self.reason = ""
        self._target = False

    def of_target(self, error: Exception | None) -> None:
        """A request has ended, with this error if any."""
        if isinstance(error, ModelError) and error.device_lost:
            self.reason, self._target = error.message, True

    def of_draft(self, error: ModelError) -> None:
        """A draft has failed; the target may be well."""
        if error.device_lost:
            self.reason = self.reason or error.message

    def must_end(self, *, idle: bool) -> bool:
        """Whether there is no use in going on. Without its draft the target goes on for as long as
        there are requests."""
        return self._target or (bool(self.reason) and idle)
