"""Power cuts on the simulated disk: where no file system can be shut down, and at any scale."""

from __future__ import annotations

from crash_judge import Judge
from crash_script import ASYNC, POOLED, SYNC, ScriptedRun
from crash_states import Finding, Tally

from skylark.errors import SkylarkError

CYCLES_EACH = 20
CONFIGS = {"SYNC_FLUSH": SYNC, "ASYNC_FLUSH": ASYNC, "pooled": POOLED}


def cut_again_and_again(name: str, seed: int, cycles: int = CYCLES_EACH) -> Tally:
    """One store, many lives: each ends in a power cut, and the next begins with what is left."""
    tally = Tally()
    run = ScriptedRun(CONFIGS[name], seed=seed)
    try:
        for _ in range(cycles):
            for _ in range(run.rng.randrange(1, 6)):
                run.put(run.rng.randrange(1, 5))
                run.wait(run.rng.randrange(900))
                step = run.rng.random()
                if step < 0.5:
                    run.flush(putting=step < 0.2)
                elif step < 0.7:
                    run.flush_queues(thorough=step < 0.65, putting=step < 0.6)
            run.cut_power()
            Judge(run.config, run.clock.now_ms()).check_derived(run.store, run.history)
            tally.states += 1
    except (AssertionError, SkylarkError) as error:
        where = f"power cuts {name} seed={seed} cycle={tally.states}"
        tally.findings.append(Finding(where, f"{type(error).__name__}: {error}"))
    return tally
