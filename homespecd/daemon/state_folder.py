"""Whether what is learned can be kept: asked by the service itself, which is who writes there.

Nothing depends on it but the next start, which would have to measure and guess again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from homespecd.config.checks import Fault
from homespecd.config.schema import Config


def state_faults(config: Config) -> Iterator[Fault]:
    """A state directory in which this process cannot make a file. A missing one is made when it is
    needed, so then the nearest folder that is there must let it."""
    folder = config.paths.state
    try:
        there = next(one for one in (folder, *folder.parents) if one.exists())
        with tempfile.TemporaryFile(dir=there):
            return
    except OSError as error:
        yield Fault(
            ("paths", "state"),
            f"{folder} cannot be written ({error.strerror}): what is learned of models is lost "
            "when the service stops",
            "make it a folder of the service's user on a disk with room",
        )
