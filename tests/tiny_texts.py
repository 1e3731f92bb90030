"""What lies beside a toy's graph: tokenizer, configurations, chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracle import CONTROL, MERGES, PAD, PIECES, Toy

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def _letter_of_byte() -> list[str]:
    """The printable letter that stands for each byte in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def write_texts(folder: Path, toy: Toy) -> None:
    """Write everything but the graph into a toy's folder."""
    letters = _letter_of_byte()

    def word(piece: bytes) -> str:
        return "".join(letters[b] for b in piece)

    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = len(PIECES)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": first + i, "content": name, "special": True, **flags}
            for i, name in enumerate(CONTROL)
        ],
        "normalizer": None,
        # No split into words: any text is one run of bytes, merged by rank alone.
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "vocab": {word(piece): i for i, piece in enumerate(PIECES)},
            "merges": [[word(a), word(b)] for a, b in MERGES],
        },
    }
    names = {first + i: name for i, name in enumerate(CONTROL)}
    config: dict[str, Any] = {
        "model_type": "toy",
        "vocab_size": toy.width,
        "num_hidden_layers": toy.layers,
        "num_attention_heads": toy.heads,
        "num_key_value_heads": toy.heads,
        "head_dim": toy.head_dim,
        "hidden_size": toy.heads * toy.head_dim,
        "max_position_embeddings": toy.context,
    }
    if toy.config_eos:
        one = toy.config_eos[0]
        config["eos_token_id"] = one if len(toy.config_eos) == 1 else list(toy.config_eos)
    tokenizer_config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": CHAT_TEMPLATE,
        "pad_token": names[PAD],
    }
    if toy.tokenizer_eos is not None:
        tokenizer_config["eos_token"] = names[toy.tokenizer_eos]
    texts = {
        "tokenizer.json": tokenizer,
        "config.json": config,
        "tokenizer_config.json": tokenizer_config,
    }
    if toy.generation_eos:
        texts["generation_config.json"] = {"eos_token_id": list(toy.generation_eos)}
    for name, content in texts.items():
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text, encoding="utf-8")
