"""A GGUF file as this program sees it: plain metadata, and tensors that stay on disk until asked.

Owns the reading and the complaints about files that are missing, cut short or not GGUF at all. It
knows nothing of architectures or of what becomes of a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFEndian, GGUFReader, GGUFValueType
from gguf.quants import dequantize

from homespecd.errors import BundleError

GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. `shape` is [out, in] as numpy has it (GGUF writes the inner axis first).

    `data` is a view of the mapped file: uint8 [out, row_bytes] for quantised types, else floats
    of `shape`.
    """

    name: str
    type_name: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.generic]

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def float32(self) -> npt.NDArray[np.float32]:
        """The values, float32 of `shape`, dequantised where need be.

        Raises:
            BundleError: nothing here can read this tensor type, or a value is not finite.
        """
        from gguf import GGMLQuantizationType

        try:
            values = dequantize(self.data, GGMLQuantizationType[self.type_name])
        except NotImplementedError:
            raise BundleError(
                f"tensor {self.name} is stored as {self.type_name}, which cannot be read",
                hint="use a file in F16, Q8_0, Q4_0, Q4_1 or a K-quant",
            ) from None
        if not np.isfinite(values).all():
            raise BundleError(f"tensor {self.name} holds values that are not finite numbers")
        return np.ascontiguousarray(values.reshape(self.shape), dtype=np.float32)


class GgufFile:
    """An opened GGUF file.

    Raises:
        BundleError: it is missing, unreadable, not GGUF, big-endian or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        reader = _read(path)
        if reader.endianess is not GGUFEndian.LITTLE:
            raise BundleError(
                "is a big-endian GGUF file", where=str(path), hint="convert it to little-endian"
            )
        self.metadata: Mapping[str, object] = {
            key: _plain(field.types[0], field.contents())
            for key, field in reader.fields.items()
            if not key.startswith("GGUF.") and field.types
        }
        self.tensors: Mapping[str, GgufTensor] = {
            tensor.name: GgufTensor(
                name=tensor.name,
                type_name=tensor.tensor_type.name,
                shape=tuple(int(size) for size in reversed(tensor.shape.tolist())),
                data=tensor.data,
            )
            for tensor in reader.tensors
        }

    def tensor(self, name: str) -> GgufTensor:
        """Raises BundleError when the file has no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise BundleError(
                f"the tensor {name} is missing", where=str(self.path), hint="is the file complete?"
            ) from None

    def text(self, key: str) -> str:
        """A metadata string, "" when the file does not say."""
        value = self.metadata.get(key, "")
        return value if isinstance(value, str) else ""


def is_gguf(path: Path) -> bool:
    """Whether this is a file that begins like GGUF."""
    try:
        with path.open("rb") as file:
            return file.read(4) == GGUF_MAGIC
    except OSError:
        return False


def _read(path: Path) -> GGUFReader:
    where = str(path)
    try:
        if not is_gguf(path):
            path.open("rb").close()
            raise BundleError("is not a GGUF file", where=where)
        return GGUFReader(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise BundleError(f"cannot be read: {reason}", where=where) from error
    except (
        ValueError,
        IndexError,
        KeyError,
        OverflowError,
        UnicodeDecodeError,
        TypeError,
    ) as error:
        # The library has no error of its own: a file that was cut short surfaces as whatever
        # numpy says about the slice that came out too small.
        raise BundleError(
            "is cut short or damaged",
            where=where,
            hint="compare its size and checksum with the original and fetch it again",
        ) from error


def _plain(kind: GGUFValueType, value: object) -> object:
    """Python's own types only, so that nobody above needs numpy or gguf to look at metadata."""
    if kind is GGUFValueType.BOOL:
        return bool(value)
    if isinstance(value, np.generic):
        return value.item()
    return value
