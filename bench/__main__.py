"""`python -m bench`: what the service costs over a bare loop, and how it stands beside genai.

Three ways of decoding the same graph with the same threads, in turns within one run: a bare
onnxruntime loop, homespecd over its socket (streamed, speculation off), and onnxruntime-genai where
it is installed (`pip install 'homespecd[bench-genai]'`). Each turn runs every arm once, and ratios
are taken within a turn, so a machine whose speed drifts drifts for all arms alike.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.arms import Arm, ChildArm, SocketArm
from homespecd.bundle.manifest import read_manifest
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.cli.demo import model_file
from homespecd.cli.service import private_folder, running
from homespecd.runtime.importing import import_model
from homespecd.runtime.prepack import best_graphs
from homespecd.runtime.threads import usable_threads
from homespecd.worker.machine import describe_machine

CONTEXT = 1024
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
PROMPT = (
    "A lighthouse keeper writes down the weather every evening. Describe, day by day and in plain "
    "words, what the wind, the sea and the sky did during one week in autumn, and what passed by."
)
CONFIG = """\
[server]
socket = "{socket}"
socket_mode = "0600"
socket_group = ""

[paths]
models = "/"
state = "{state}"

[memory]
cap = "16GiB"
reserve = "0B"

[models.bench]
path = BUNDLE
context = CONTEXT
threads = THREADS
slots = 1
residency = "pinned"
drafters = []
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--bundle", type=Path, help="an imported model (default: SmolLM2 at int4)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: what this process may use")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bundle = (arguments.bundle or _smollm2()).resolve()
    threads = usable_threads(arguments.threads)
    prompt = Tokenizer.load(bundle).encode(PROMPT, parse_special=False)
    with _arms(bundle, threads) as arms:
        times = _measure(arms, prompt, arguments.tokens, arguments.repeats)
    result = _result(times, bundle=bundle, threads=threads, tokens=arguments.tokens)
    if arguments.json:
        print(json.dumps(result))
    else:
        _show(result)
    return 0


def _smollm2() -> Path:
    folder = CACHE / "smollm2-int4"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        import_model(model_file(), name=folder.name, into=CACHE, precision="int4")
    return folder


@contextmanager
def _arms(bundle: Path, threads: int) -> Iterator[list[Arm]]:
    """All arms, warm and idle."""
    graph = best_graphs(bundle, read_manifest(bundle)).files[1]
    arms: list[Arm] = [ChildArm("bare", str(graph), str(threads), str(CONTEXT))]
    with private_folder() as folder, tempfile.TemporaryDirectory(dir=bundle.parent) as scratch:
        if importlib.util.find_spec("onnxruntime_genai"):
            # Onnx is needed to write genai's model, and only for that.
            from bench.genai_model import write_genai_model

            model = write_genai_model(
                bundle / "model.lanes1.onnx",
                Path(scratch) / "genai",
                read_manifest(bundle),
                threads=threads,
                context=CONTEXT,
            )
            arms.append(ChildArm("genai", str(model), str(CONTEXT)))
        else:
            print("onnxruntime-genai is not installed: that arm is left out", file=sys.stderr)
        config = CONFIG.replace("BUNDLE", json.dumps(str(bundle)))
        config = config.replace("CONTEXT", str(CONTEXT)).replace("THREADS", str(threads))
        with running(config, folder) as service:
            arms.append(SocketArm(service.client.path, "bench"))
            try:
                yield arms
            finally:
                for arm in arms:
                    arm.close()


def _measure(
    arms: list[Arm], prompt: list[int], tokens: int, repeats: int
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    answers: dict[str, list[int]] = {}
    for repeat in range(-1, repeats):  # the first turn warms up and is not counted
        for arm in arms if repeat % 2 == 0 else reversed(arms):
            answer, ms_per_token = arm.decode(prompt, tokens)
            if answer:
                answers[arm.name] = answer
            if repeat >= 0:
                times[arm.name].append(ms_per_token)
    if len({tuple(answer) for answer in answers.values()}) > 1:
        # One differing kernel choice is enough; the times stay comparable, and it is said.
        print("note: the arms' greedy tokens differ", file=sys.stderr)
    return times


def _result(
    times: dict[str, list[float]], *, bundle: Path, threads: int, tokens: int
) -> dict[str, object]:
    bare = times["bare"]
    arms = {
        name: {
            "ms_per_token": round(statistics.median(own), 3),
            "ms_per_token_min": round(min(own), 3),
            "ms_per_token_max": round(max(own), 3),
            "tok_s": round(1e3 / statistics.median(own), 1),
            "over_bare": round(statistics.median(a / b for a, b in zip(own, bare, strict=True)), 4),
        }
        for name, own in times.items()
    }
    packages = ("onnxruntime", "onnxruntime-genai")
    return {
        "model": bundle.name,
        "machine": describe_machine(),
        "threads": threads,
        "tokens": tokens,
        "repeats": len(bare),
        "versions": {name: _version(name) for name in packages},
        "arms": arms,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(result: dict[str, object]) -> None:
    arms = result["arms"]
    assert isinstance(arms, dict)
    table = Table(title=f"{result['model']} · {result['machine']} · {result['threads']} threads")
    for column in ("arm", "ms/token", "min", "max", "tok/s", "÷ bare (paired)"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, own in arms.items():
        table.add_row(
            name,
            f"{own['ms_per_token']:.2f}",
            f"{own['ms_per_token_min']:.2f}",
            f"{own['ms_per_token_max']:.2f}",
            f"{own['tok_s']:.1f}",
            f"{own['over_bare']:.3f}",
        )
    console = Console()
    console.print(table)
    console.print(f"{result['tokens']} tokens × {result['repeats']} turns · {result['versions']}")


if __name__ == "__main__":
    sys.exit(main())
