"""What tests of the configuration share: a good file, one to write, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from homespecd.config import load
from homespecd.errors import ConfigError

GOOD = """\
[server]
socket = "/run/x/x.sock"
socket_mode = "0600"
socket_group = ""
listen = ["127.0.0.1:8435", "[::1]:8436", "localhost:1"]
api_keys_file = ""
max_body = "8MiB"
max_queue = 0

[paths]
models = "/srv/models"
state = "state"

[memory]
cap = "6GiB"
reserve = "0B"
pressure = 5

[speculation]
enabled = false
min_speedup = 1.05
max_draft_tokens = 4
probe_budget = 0.0

[models.smollm2]
path = "smollm2-135m-instruct"
variant = "q4"
provider = "cuda"
provider_options = { device_id = 1, gpu_mem_limit = "2GiB", use_tf32 = true }
provider_required = true
threads = 2
context = 2048
slots = 3
residency = "pinned"
idle_unload = "1h30m"
memory_cap = "2GiB"
drafters = ["ngram", "small"]

[models."org:model@1.5"]
path = "/elsewhere/model"

[drafters.ngram]
kind = "ngram"

[drafters.small]
kind = "model"
path = "small"
provider = "cpu"
max_draft_tokens = 3

[clients.default]
allow_models = ["smol*"]
[clients."@media"]
max_active = 1
"""


def write(folder: Path, text: str | bytes, name: str = "homespecd.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(path: Path, *, check_paths: bool = False) -> list[str]:
    """Each problem as "line: key: message (hint)", a line where it has one; no file's name."""
    with pytest.raises(ConfigError) as caught:
        load(path, check_paths=check_paths)
    prefix = f"{path}:"
    return [str(one).removeprefix(prefix).lstrip() for one in caught.value.problems]
