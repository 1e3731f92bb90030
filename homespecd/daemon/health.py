"""Whether a worker hangs: a pure function of what was seen of it.

A worker is asked for a word a few times a second. Its reader answers between two instructions of
Python, whatever its engine does, and says in which turn the engine is. So there are three ways to
hang, and each has its own patience:

- the process is stopped (SIGSTOP, a debugger) and has not run for half a second: it is over;
- nobody answers. A process that sleeps and uses no processor will not answer later either. One that
  computes, waits for the disk or waits for its turn on an overloaded machine may;
- it answers, and the engine stays in one turn: for much longer than such a step ever took, and
  without reading its weights back from the disk.

Times are on a clock that stands still while the supervisor itself does not run (`daemon.vigil`):
what was frozen, suspended or starved together with us is not to blame.
"""

from __future__ import annotations

from dataclasses import dataclass

# A process that sleeps wakes up now and then: threads that wait for the interpreter do so every few
# milliseconds. It is at work if it used so much of the time, or was awake at so many of the looks.
_WORK_CPU_SHARE = 0.1
_WORK_LOOKS_SHARE = 0.5

_STOPPED = ("T", "t")


@dataclass(frozen=True)
class Patience:
    """Seconds from which a worker hangs.

    stopped_s: it is stopped, and has not run; shorter is a tool that looks at it, as strace does,
    again and again. silent_s: it does not answer, and sleeps. busy_s: it does not answer, and is
    doing something.
    step_s, step_times: one step takes so long, and so many times what was predicted.
    unknown_step_s: a step of which nothing is known to go by. between_s: the engine is in no step
    and has work: it renders a prompt, or samples.
    """

    stopped_s: float = 0.5
    silent_s: float = 1.5
    busy_s: float = 10.0
    step_s: float = 10.0
    step_times: float = 20.0
    unknown_step_s: float = 300.0
    between_s: float = 60.0


@dataclass(frozen=True)
class EngineWord:
    """What the worker last said of its engine. doing: "idle", "step", "between".

    turn: changes whenever it gets on. predicted_s: of the step it is in, None when unknown.
    """

    turn: int = 0
    doing: str = "idle"
    predicted_s: float | None = None


@dataclass(frozen=True)
class Sighting:
    """One look at a worker.

    state: of the process, a letter as in /proc; asleep: all its threads sleep; cpu_s: processor
    time it has used; faults: pages it had to wait for the disk for; ran_ns: moves when it runs.
    asked_s: since when a question waits for an answer, None = none does.
    """

    now_s: float
    state: str = "S"
    asleep: bool = True
    cpu_s: float = 0.0
    faults: int = 0
    ran_ns: int = 0
    asked_s: float | None = None
    engine: EngineWord = EngineWord()


@dataclass(frozen=True)
class Health:
    """What is known after some looks; begin with `Health()`.

    verdict: why the worker must be ended, "" while it need not be.
    """

    verdict: str = ""
    stopped: Sighting | None = None  # the first look of the present stop
    silence: Sighting | None = None  # the first look of the present silence
    silent_looks: int = 0
    restless_looks: int = 0  # of these, those at which it did not sleep
    turn: int = -1
    turn_since_s: float = 0.0
    faults: int = 0


def judge(before: Health, now: Sighting, patience: Patience) -> Health:
    """Take one more look into account."""
    stopped = None
    if now.state in _STOPPED:
        # Two looks may hit two stops, and it ran between them.
        same_stop = before.stopped is not None and before.stopped.ran_ns == now.ran_ns
        stopped = before.stopped if same_stop else now
    silence, silent_looks, restless_looks = None, 0, 0
    if now.asked_s is not None:
        silence = before.silence or now
        silent_looks = before.silent_looks + 1
        restless_looks = before.restless_looks + (not now.asleep)
    same_turn = now.engine.turn == before.turn and now.engine.doing != "idle"
    getting_on = not same_turn or now.faults > before.faults
    turn_since_s = now.now_s if getting_on else before.turn_since_s
    verdict = before.verdict
    if not verdict and stopped is not None and now.now_s - stopped.now_s >= patience.stopped_s:
        verdict = "it was stopped (by SIGSTOP, or a debugger)"
    if not verdict and silence is not None and now.asked_s is not None:
        silent_s = now.now_s - now.asked_s
        at_work = (
            restless_looks >= _WORK_LOOKS_SHARE * silent_looks
            or now.cpu_s - silence.cpu_s >= _WORK_CPU_SHARE * silent_s
        )
        verdict = _silent(silent_s, at_work=at_work, patience=patience)
    if not verdict:
        verdict = _stuck(now.now_s - turn_since_s, now.engine, patience)
    return Health(
        verdict=verdict,
        stopped=stopped,
        silence=silence,
        silent_looks=silent_looks,
        restless_looks=restless_looks,
        turn=now.engine.turn,
        turn_since_s=turn_since_s,
        faults=now.faults,
    )


def _silent(silent_s: float, *, at_work: bool, patience: Patience) -> str:
    if silent_s < (patience.busy_s if at_work else patience.silent_s):
        return ""
    doing = "" if at_work else " and did nothing"
    return f"it had not answered for {silent_s:.1f} s{doing}"


def _stuck(in_turn_s: float, engine: EngineWord, patience: Patience) -> str:
    if engine.doing == "between":
        limit_s, what = patience.between_s, "was stuck between two steps"
    elif engine.predicted_s is None:
        limit_s, what = patience.unknown_step_s, "was stuck in a step"
    else:
        limit_s = max(patience.step_s, patience.step_times * engine.predicted_s)
        what = "was stuck in a step"
    if engine.doing == "idle" or in_turn_s <= limit_s:
        return ""
    return f"its engine {what} for {in_turn_s:.1f} s"
