"""The one weights file of a bundle, and the initializers that point into it.

Every graph of a bundle (one per lane count) refers to the same bytes, so the arrays are written
once and each becomes an ONNX initializer with external data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

WEIGHTS_FILE = "weights.bin"

# Large arrays begin on a page so that they can be mapped as they are.
_PAGE_BYTES = 4096
_LINE_BYTES = 64


class WeightsWriter:
    """Writes arrays one after the other; a context manager that closes and syncs the file.

    Raises:
        OSError: from any method, when the disk is full or fails.
    """

    def __init__(self, folder: Path) -> None:
        self._file = (folder / WEIGHTS_FILE).open("wb")
        self._initializers: dict[str, TensorProto] = {}

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()

    @property
    def initializers(self) -> Mapping[str, TensorProto]:
        return self._initializers

    def add(self, name: str, array: npt.NDArray[np.generic]) -> None:
        """Append an array under a name of its own."""
        assert name not in self._initializers, name
        data = np.ascontiguousarray(array)
        unit = _PAGE_BYTES if data.nbytes >= _PAGE_BYTES else _LINE_BYTES
        self._file.write(bytes(-self._file.tell() % unit))
        offset = self._file.tell()
        self._file.write(data.data)
        self._initializers[name] = _external(name, data, offset, data.shape)

    def alias(self, name: str, of: str, shape: tuple[int, ...]) -> None:
        """Another name and shape for bytes that are there already."""
        source = self._initializers[of]
        proto = TensorProto()
        proto.CopyFrom(source)
        proto.name = name
        del proto.dims[:]
        proto.dims.extend(shape)
        self._initializers[name] = proto


def _external(
    name: str, data: npt.NDArray[np.generic], offset: int, shape: tuple[int, ...]
) -> TensorProto:
    proto = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(data.dtype),
        dims=shape,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", data.nbytes)):
        proto.external_data.add(key=key, value=str(value))
    return proto
