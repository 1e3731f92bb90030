"""Where a graph really runs: what the session says of each node, and what that is worth.

That a provider is listed by a session proves nothing: one was seen to come up, be listed, and have
every node on the CPU. So the nodes are counted. Pure; `runtime.backend` asks the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# What a provider leaves on the CPU on purpose: arithmetic on shapes, positions and ids, a few
# numbers each, whose results the CPU wants anyway. Every provider here has kernels of its own for
# these operators on floats, so one that is left on the CPU is never a tensor that matters.
_SHAPES = ("Shape", "Size", "Constant", "ConstantOfShape", "Identity", "Reshape", "Expand", "Tile")
_PICKING = ("Gather", "GatherND", "ScatterND", "Slice", "Split", "Concat", "Squeeze", "Unsqueeze")
_MOVING = ("Transpose", "Pad", "Trilu", "NonZero", "OneHot", "Cast", "Range", "CumSum")
_NUMBERS = ("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max", "Floor", "Ceil")
_TRUTH = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or", "Where")
_SUMS = ("ReduceSum", "ReduceProd", "ReduceMin", "ReduceMax")
HOST_OPERATORS = frozenset((*_SHAPES, *_PICKING, *_MOVING, *_NUMBERS, *_TRUTH, *_SUMS))


@dataclass(frozen=True)
class PlacedNode:
    """One operator of a graph as it was loaded, and the execution provider that runs it.

    provider: onnxruntime's name ("CPUExecutionProvider").
    """

    provider: str
    operator: str


@dataclass(frozen=True)
class Share:
    """How much of a graph a provider took.

    taken, elsewhere: nodes; what a provider leaves on the CPU on purpose is in neither.
    operators: of the nodes elsewhere, how many of each, most frequent first.
    """

    taken: int
    elsewhere: int
    operators: Mapping[str, int] = field(default_factory=dict)

    @property
    def share_elsewhere(self) -> float:
        """0.0 (all is where it was meant to be) to 1.0."""
        total = self.taken + self.elsewhere
        return self.elsewhere / total if total else 0.0


def count(nodes: Iterable[PlacedNode], provider: str) -> Share:
    """What `provider` (onnxruntime's name) took of these nodes.

    A provider that took nothing at all is not excused: then every node counts.
    """
    placed = list(nodes)
    taken = sum(node.provider == provider for node in placed)
    elsewhere = Counter(
        node.operator
        for node in placed
        if node.provider != provider and not (taken and node.operator in HOST_OPERATORS)
    )
    return Share(taken, elsewhere.total(), dict(elsewhere.most_common()))


def named(operators: Mapping[str, int], *, most: int = 6) -> str:
    """Operators as people read them: "GroupQueryAttention (30), Mod (1) and 2 others"."""
    shown = [f"{name} ({times})" for name, times in list(operators.items())[:most]]
    more = len(operators) - len(shown)
    return ", ".join(shown) + (f" and {more} others" if more else "")


@dataclass(frozen=True)
class DeviceMemory:
    """Memory that a session's own results lie in, by onnxruntime's names ("cuda", 1)."""

    kind: str = "cpu"
    index: int = 0


@dataclass(frozen=True)
class Placement:
    """What was asked for, where it really runs, and why these differ ("" when they do not).

    requested: "auto" or a provider. provider, device: where it runs ("cuda", "GPU 0").
    share_elsewhere: of its nodes that another provider runs; None = this onnxruntime cannot say.
    operators_elsewhere: which, and how many of each.
    """

    requested: str
    provider: str
    reason: str = ""
    device: str = ""
    share_elsewhere: float | None = 0.0
    operators_elsewhere: Mapping[str, int] = field(default_factory=dict)
