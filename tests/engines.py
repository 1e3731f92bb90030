"""A worker's engine over fake models, for tests: no process, no socket, no tokenizer, no waiting.

Token ids spell themselves, as in `tests.conversations`. What would go to the supervisor is kept.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from homespecd.bundle.chat import ChatTemplate
from homespecd.bundle.identity import Identity
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.decoding.params import SamplingParams
from homespecd.governor.protocol import Reason, SpeculationMode
from homespecd.worker.bench import bench_job
from homespecd.worker.engine import Engine
from homespecd.worker.governing import make_governor
from homespecd.worker.load import Draft, Loaded
from homespecd.worker.messages import (
    DrafterSettings,
    Frame,
    GenerationRequest,
    SpeculationSettings,
    WorkerSettings,
)
from homespecd.worker.outbox import Outbox
from homespecd.worker.tokens import detokenize_job
from homespecd.worker.verify import verify_job
from tests.conversations import SpellingStream
from tests.fakes import FakeClock, FakeModel


class Letters:
    """What the engine asks of a tokenizer. Texts are not encoded: prompts are ids."""

    eos_ids: frozenset[int] = frozenset()
    bos_id = None
    add_bos = False

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def stream(self) -> SpellingStream:
        return SpellingStream()


class Frames(Outbox):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def of(self, request: int) -> list[Frame]:
        return [frame for frame in self.sent if frame.get("id") == request]

    def last(self, request: int) -> Frame:
        """How a request ended."""
        return self.of(request)[-1]


def loaded_model(
    target: FakeModel,
    drafts: Mapping[str, FakeModel | None],
    *,
    state: Path | None = None,
    slots: int = 2,
    speculation: SpeculationSettings | None = None,
) -> Loaded:
    """`drafts`: name → model; None is a lookup. A draft model's digest is its name."""
    speculation = speculation or SpeculationSettings()
    settings = tuple(
        DrafterSettings(name=name, kind="ngram" if model is None else "model", max_draft_tokens=8)
        for name, model in drafts.items()
    )
    return Loaded(
        settings=WorkerSettings(
            name="toy",
            path="/nowhere",
            context=target.spec.context,
            slots=slots,
            state_dir="" if state is None else str(state),
            speculation=speculation,
            drafters=settings,
        ),
        target=target,
        tokenizer=cast("Tokenizer", Letters(target.spec.vocab_size)),
        template=ChatTemplate(None),
        identity=Identity(digest="sha256:toy", precision="toy"),
        drafts={
            one.name: Draft(
                one, model=drafts[one.name], digest=one.name if drafts[one.name] else ""
            )
            for one in settings
        },
        exactness=None,
        blocked=None if speculation.enabled else Reason.DISABLED_BY_CONFIG,
    )


class Worker:
    """An engine and its two ends: `post` what a supervisor would send, read `frames`."""

    def __init__(self, loaded: Loaded, clock: FakeClock) -> None:
        self.clock = clock
        self.stopped = False
        self.frames = Frames()
        self.inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
        self.learned = make_governor(loaded, clock_s=clock)
        self.engine = Engine(
            loaded=loaded,
            learned=self.learned,
            outbox=self.frames,
            inbox=self.inbox,
            jobs={"bench": bench_job, "verify": verify_job},
            questions={"detokenize": detokenize_job},
            clock_s=clock,
        )

    def post(self, frame: Frame) -> None:
        self.inbox.put(frame)

    def generate(self, request: int, prompt: tuple[int, ...], **options: Any) -> None:
        options.setdefault("sampling", SamplingParams(temperature=0.0))
        options.setdefault("max_tokens", 24)
        asked = GenerationRequest(prompt=prompt, **options)
        self.post({"type": "generate", "id": request, "request": asked.to_frame()})

    def answer(self, request: int, prompt: tuple[int, ...], **options: Any) -> Frame:
        """Ask, wait, and return the frame that ended it."""
        self.generate(request, prompt, **options)
        self.work()
        return self.frames.last(request)

    def text(self, request: int) -> str:
        return "".join(one["text"] for one in self.frames.of(request) if one["type"] == "delta")

    def work(self) -> None:
        """Until nothing is left to do."""
        self.engine.pump()
        while not self.engine.serving.scheduler.idle:
            self.engine.pump()

    def stop(self) -> None:
        """As the supervisor would: whatever was posted is done first, jobs included."""
        if not self.stopped:
            self.stopped = True
            self.post({"type": "stop"})
            self.engine.run()


@contextmanager
def worker(
    target: Callable[[FakeClock], FakeModel],
    drafts: Mapping[str, Callable[[FakeClock], FakeModel] | None] | None = None,
    **options: Any,
) -> Iterator[Worker]:
    """A worker that is stopped at the end. Models are made with the clock that they move on."""
    clock = FakeClock()
    models = {name: make and make(clock) for name, make in (drafts or {}).items()}
    one = Worker(loaded_model(target(clock), models, **options), clock)
    yield one
    one.stop()


PLAIN, ALWAYS = SpeculationMode.OFF, SpeculationMode.ON
