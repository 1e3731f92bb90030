"""Everything one model needs, opened and checked: target, tokenizer, template, drafters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from homespecd.bundle.chat import ChatTemplate
from homespecd.bundle.identity import Identity, identify
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.drafters.protocol import Drafter
from homespecd.errors import BundleError, HomespecError
from homespecd.governor.protocol import Reason
from homespecd.runtime.open import open_model
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.step import Model
from homespecd.worker.checks import Exactness, compare
from homespecd.worker.memory import held_bytes
from homespecd.worker.messages import DrafterSettings, WorkerSettings
from homespecd.worker.verdict import place

# Positions compared at load: enough for one block of every width that a round uses often, and a
# quarter of a second at 15 ms a token.
CHECKED_TOKENS = 16


@dataclass
class Draft:
    """One configured drafter. Without `problem` it may be used; `model` is None for lookups.

    digest: of a draft model, "" for lookups. held_bytes: what opening it added to this process.
    """

    settings: DrafterSettings
    model: Model | None = None
    digest: str = ""
    problem: Reason | None = None
    detail: str = ""
    held_bytes: int = 0

    @property
    def usable(self) -> bool:
        return self.problem is None

    @property
    def key(self) -> str:
        """What is learned of it belongs to these weights, and to where they run."""
        where = "cpu" if self.model is None else place(self.model.spec)
        return self.digest if where == "cpu" else f"{self.digest}@{where}"

    def fail(self, reason: Reason, detail: str) -> None:
        self.problem, self.detail = reason, detail

    def for_slot(self) -> Drafter:
        """A drafter of this kind with a cache of its own."""
        if self.settings.kind == "ngram":
            return NgramDrafter(self.settings.name)
        assert self.model is not None
        return ModelDrafter(self.settings.name, self.model)


@dataclass(frozen=True)
class Loaded:
    """A model ready to answer.

    vocab_size: ids that may be emitted: the tokenizer knows them and the logits have them.
    blocked: why no block of this target may be verified, None when blocks are fine.
    """

    settings: WorkerSettings
    target: Model
    tokenizer: Tokenizer
    template: ChatTemplate
    identity: Identity
    drafts: dict[str, Draft]
    exactness: Exactness | None
    blocked: Reason | None

    @property
    def vocab_size(self) -> int:
        return min(self.tokenizer.vocab_size, self.target.spec.vocab_size)

    def close(self) -> None:
        for draft in self.drafts.values():
            if draft.model is not None:
                draft.model.close()
        self.target.close()


def load(settings: WorkerSettings, progress: Callable[[str], None]) -> Loaded:
    """Open and check everything. A draft that cannot be used is noted, never fatal.

    Raises:
        HomespecError: the target itself cannot serve.
    """
    path = Path(settings.path)
    progress("tokenizer")
    tokenizer = Tokenizer.load(path)
    template = ChatTemplate.load(path, tokenizer)
    progress("target")
    target = open_model(
        path,
        variant=settings.variant,
        provider=where(settings, settings, required=settings.provider_required),
        threads=settings.threads,
        context=settings.context,
        lanes=settings.slots,
    )
    progress("checks")
    exactness, blocked = _check(settings, target, tokenizer)
    drafts = {}
    for one in settings.drafters if settings.speculation.enabled else ():
        progress(f"drafter {one.name}")
        drafts[one.name] = open_draft(one, settings, tokenizer)
    return Loaded(
        settings=settings,
        target=target,
        tokenizer=tokenizer,
        template=template,
        identity=identify(path, variant=settings.variant),
        drafts=drafts,
        exactness=exactness,
        blocked=blocked,
    )


def where(
    one: WorkerSettings | DrafterSettings, settings: WorkerSettings, *, required: bool
) -> ProviderRequest:
    """Where a target or a drafter of these settings is asked to run."""
    return ProviderRequest(
        one.provider,
        one.provider_options,
        required=required,
        cache_dir=str(Path(settings.state_dir) / "compiled") if settings.state_dir else "",
        memory_limit_bytes=settings.device_memory_bytes,
    )


def _check(
    settings: WorkerSettings, target: Model, tokenizer: Tokenizer
) -> tuple[Exactness | None, Reason | None]:
    if not settings.speculation.enabled:
        return None, Reason.DISABLED_BY_CONFIG
    if target.spec.logits_last_only:
        return None, Reason.LOGITS_LAST_ONLY
    vocab = min(tokenizer.vocab_size, target.spec.vocab_size)
    count = min(CHECKED_TOKENS, settings.context - 1)
    # Ids spread over the vocabulary: what they spell does not matter, that they differ does.
    tokens = [(7 + 104_729 * i) % vocab for i in range(count)]
    exactness = compare(target, tokens, width=max(2, count // 2))
    return exactness, None if exactness.block_causal else Reason.NOT_BLOCK_CAUSAL


def without_model(one: DrafterSettings) -> bool:
    """Whether this drafter needs no memory worth counting."""
    return one.kind == "ngram"


def withheld(one: DrafterSettings, settings: WorkerSettings) -> Draft:
    """A draft that is not to be in memory now."""
    return Draft(one, problem=Reason.DRAFT_OVER_CAP, detail=settings.withhold_drafts)


def open_draft(one: DrafterSettings, settings: WorkerSettings, tokenizer: Tokenizer) -> Draft:
    """Open one drafter for a target with this tokenizer. What is wrong is in its `problem`."""
    draft = Draft(one)
    if without_model(one):
        return draft
    if settings.withhold_drafts:
        return withheld(one, settings)
    path = Path(one.path)
    before_bytes = held_bytes()
    try:
        own = Tokenizer.load(path)
        if own.vocab_digest != tokenizer.vocab_digest:
            draft.fail(
                Reason.DRAFT_INCOMPATIBLE,
                f"{path}: its vocabulary is not the target's, so its tokens mean something else "
                "(pair models that share a tokenizer)",
            )
            return draft
        draft.model = open_model(
            path,
            variant=one.variant,
            # A draft is never worth failing for: elsewhere is slower, and that is measured.
            provider=where(one, settings, required=False),
            threads=settings.threads,
            context=None,
            lanes=settings.slots,
        )
        draft.digest = identify(path, variant=one.variant).digest
        draft.held_bytes = max(0, held_bytes() - before_bytes)
    except HomespecError as error:
        draft.fail(Reason.DRAFT_FAILED, str(error))
    except OSError as error:
        draft.fail(Reason.DRAFT_FAILED, str(unreadable(error, one.path)))
    return draft


def unreadable(error: OSError, folder: str) -> BundleError:
    """What the system said of a file, as a sentence about the model in `folder`."""
    return BundleError(
        f"cannot be read: {error.strerror or error}",
        where=str(error.filename or folder),
        hint="the user that homespecd runs as must be able to read it and to enter its folders",
    )
