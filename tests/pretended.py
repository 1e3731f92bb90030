"""A device that is the CPU, which takes the same calls; only that its memory is another one is
pretended."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.runtime.placement import DeviceMemory
from homespecd.runtime.session import load_onnxruntime

DEVICE = DeviceMemory("pretended", 1)


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Sessions opened from now on have memory of their own; the list is where buffers were made."""
    places: list[tuple[str, int]] = []
    ort = load_onnxruntime()
    make, bind = ort.OrtValue.ortvalue_from_numpy, ort.IOBinding.bind_output

    def from_numpy(array: Any, kind: str = "cpu", index: int = 0) -> Any:
        places.append((kind, index))
        return make(array)

    def bind_output(self: Any, name: str, kind: str = "cpu", index: int = 0, *more: Any) -> None:
        if kind == DEVICE.kind:
            assert (index, more) == (DEVICE.index, ())
            kind, index = "cpu", 0
        bind(self, name, kind, index, *more)

    monkeypatch.setattr(ort.OrtValue, "ortvalue_from_numpy", from_numpy)
    monkeypatch.setattr(ort.IOBinding, "bind_output", bind_output)
    monkeypatch.setattr("homespecd.runtime.session.memory_of", lambda _: DEVICE)
    return places
