"""`python -m bench.placed PROVIDER`: plain against speculative on one execution provider.

The same measurement as `homespecctl bench`, over a private service that must run the model there:
what cannot is an error, not a figure from the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from bench.__main__ import smollm2
from homespecd.cli.bench import picture
from homespecd.cli.client import JOB_TIMEOUT_S, model_route
from homespecd.cli.exits import CommandError
from homespecd.cli.service import private_folder, running

CONFIG = """\
[server]
socket = "{socket}"
socket_mode = "0600"
socket_group = ""

[paths]
models = "/"
state = "{state}"

[memory]
cap = "64GiB"
reserve = "0B"

[models.bench]
path = BUNDLE
provider = PROVIDER
provider_required = true
context = 2048
slots = 1
residency = "pinned"
drafters = ["ngram"]

[drafters.ngram]
kind = "ngram"
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.placed", description=__doc__)
    parser.add_argument("provider", choices=["cpu", "cuda", "openvino", "directml"])
    parser.add_argument("--bundle", type=Path, help="an imported model (default: SmolLM2 at int4)")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    bundle = options.bundle or smollm2()
    config = CONFIG.replace("BUNDLE", json.dumps(str(bundle.absolute())))
    config = config.replace("PROVIDER", json.dumps(options.provider))
    try:
        with private_folder() as folder, running(config, folder) as service:
            body = {"max_tokens": options.tokens, "repeats": options.repeats}
            result = service.client.post(
                model_route("bench", "bench"), body, timeout_s=JOB_TIMEOUT_S
            )
            [model] = service.client.get("/homespec/status")["models"]
    except CommandError as error:
        print(f"bench.placed: {error}", file=sys.stderr)
        return 1
    console = Console()
    console.print(picture(result, console.width))
    print(json.dumps({"placement": model["placement"], "memory_bytes": model["memory_bytes"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
