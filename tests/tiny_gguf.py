"""A GGUF file of a random two-layer Llama with a byte-level vocabulary: real enough to import.

Everything an import looks at is there: GPT-2 style merges, control tokens, a chat template,
quantised tensors of any type that can be written, a tied or separate head. It takes milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

LICENCE = "apache-2.0"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "i n", "e r", "a n", "Ġ a", "Ġ the", "an d")
_NORMAL, _CONTROL = 1, 3


@dataclass(frozen=True)
class TinyLlama:
    """What to write. Types are GGUF's: of the layers' matrices, and of embedding and head.

    scale: of the random weights; the logits of a larger one are further apart.
    """

    architecture: str = "llama"
    pre: str = "gpt2"
    matrix_type: str = "Q4_1"
    embedding_type: str = "Q8_0"
    tied: bool = True
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    context: int = 256
    scale: float = 0.4
    seed: int = 0
    licence: str = LICENCE

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """The weights before they are quantised, float32 [out, in] (norms: [hidden])."""
        random = np.random.default_rng(self.seed)
        hidden, keys = self.hidden, self.kv_heads * self.head_dim

        def matrix(out: int, width: int) -> npt.NDArray[np.float32]:
            return random.normal(0, self.scale, (out, width)).astype(np.float32)

        def norm() -> npt.NDArray[np.float32]:
            return random.uniform(0.5, 1.5, hidden).astype(np.float32)

        tensors = {"token_embd": matrix(len(vocabulary()), hidden), "output_norm": norm()}
        if not self.tied:
            tensors["output"] = matrix(len(vocabulary()), hidden)
        for layer in range(self.layers):
            parts = {
                "attn_norm": norm(),
                "attn_q": matrix(hidden, hidden),
                "attn_k": matrix(keys, hidden),
                "attn_v": matrix(keys, hidden),
                "attn_output": matrix(hidden, hidden),
                "ffn_norm": norm(),
                "ffn_gate": matrix(self.feed_forward, hidden),
                "ffn_up": matrix(self.feed_forward, hidden),
                "ffn_down": matrix(hidden, self.feed_forward),
            }
            tensors.update({f"blk.{layer}.{name}": array for name, array in parts.items()})
        return {f"{name}.weight": array for name, array in tensors.items()}

    def write(self, path: Path) -> Path:
        """Write the file and return its path."""
        writer = gguf.GGUFWriter(path, self.architecture)
        self._metadata(writer)
        for name, array in self.tensors().items():
            kind = self._type(name, array)
            data = gguf.quants.quantize(array, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _type(self, name: str, array: npt.NDArray[np.float32]) -> gguf.GGMLQuantizationType:
        if array.ndim == 1:
            return gguf.GGMLQuantizationType.F32
        table = name in ("token_embd.weight", "output.weight")
        return gguf.GGMLQuantizationType[self.embedding_type if table else self.matrix_type]

    def _metadata(self, writer: gguf.GGUFWriter) -> None:
        writer.add_name("Tiny")
        writer.add_license(self.licence)
        writer.add_context_length(self.context)
        writer.add_block_count(self.layers)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(self.head_dim)
        tokens = vocabulary()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_types([_CONTROL if t in CONTROL_TOKENS else _NORMAL for t in tokens])
        writer.add_token_merges(list(MERGES))
        writer.add_bos_token_id(tokens.index("<|im_start|>"))
        writer.add_eos_token_id(tokens.index("<|im_end|>"))
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)


def vocabulary() -> list[str]:
    """Control tokens, the 256 bytes as GPT-2 spells them, and what the merges make."""
    return [*CONTROL_TOKENS, *_byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def _byte_letters() -> list[str]:
    """Every byte as a printable letter: itself where it is one, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]
