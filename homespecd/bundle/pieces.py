"""What bytes a token stands for.

A tokenizer's `decoder` is written for a whole sequence at once. All decoders of decoder-only
models come down to the same few steps per token plus something at the very start of the text, and
read that way a text can be put together token by token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from homespecd.errors import BundleError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Pieces:
    """The steps of one decoder.

    byte_level: a character stands for a byte (GPT-2's alphabet), added tokens for themselves.
    replace: pairs of text, applied in order. byte_fallback: `<0x0A>` is a byte.
    strip_start: so many leading bytes of the text are dropped if they are `strip_byte`.
    first_drops: text that vanishes from the first token. separator: between tokens.
    """

    byte_level: Mapping[str, int] | None = None
    replace: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    strip_start: int = 0
    strip_byte: bytes = b" "
    first_drops: str = ""
    separator: bytes = b""

    def of(self, token: str, *, added: bool = False, first: bool = False) -> bytes:
        """The bytes of one token, without the separator and before anything is stripped.

        added: the token is not part of the model's own vocabulary. first: it opens the text.
        """
        if self.byte_level is not None:
            values = [] if added else [self.byte_level.get(one, -1) for one in token]
            return bytes(values) if values and min(values) >= 0 else token.encode()
        if first and self.first_drops:
            token = token.replace(self.first_drops, "")
        for old, new in self.replace:
            token = token.replace(old, new)
        if self.byte_fallback and (match := _BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


def pieces_of(decoder: Mapping[str, Any] | None) -> Pieces:
    """Read the `decoder` part of a tokenizer.json.

    Raises:
        BundleError: it has a step that cannot be taken token by token, by name.
    """
    if decoder is None:
        return Pieces(separator=b" ")
    steps = list(_flat(decoder))
    if any(step["type"] == "ByteLevel" for step in steps):
        _only(steps, {"ByteLevel", "Fuse"})
        return Pieces(byte_level=_byte_alphabet())
    _only(steps, {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
    replace: list[tuple[str, str]] = []
    strip_start, strip_byte, first_drops, fused = 0, b" ", "", False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                replace.append((old, new))
            case {"type": "Metaspace", "replacement": str(mark)}:
                first_drops = "" if step.get("prepend_scheme") == "never" else mark
                replace.append((mark, " "))
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "content": str(one), "start": int(start), "stop": 0} if fused:
                strip_start, strip_byte = start, one.encode()
            case {"type": "ByteFallback"}:
                pass
            case _:
                raise _refusal(f"step {step}")
    if len(strip_byte) != 1:
        raise _refusal(f"stripping {strip_byte.decode()!r}")
    return Pieces(
        replace=tuple(replace),
        byte_fallback=any(step["type"] == "ByteFallback" for step in steps),
        strip_start=strip_start,
        strip_byte=strip_byte,
        first_drops=first_drops,
    )


def _flat(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flat(step)
    else:
        yield decoder


def _only(steps: list[Mapping[str, Any]], known: set[str]) -> None:
    for step in steps:
        if step["type"] not in known:
            raise _refusal(step["type"])


def _refusal(what: str) -> BundleError:
    return BundleError(
        f"the tokenizer's decoder {what} cannot be run token by token", where="tokenizer.json"
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the rest for U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
