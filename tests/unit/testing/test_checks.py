"""The checks themselves fail when they should."""

import asyncio

import pytest

from skylark.testing import Outages, SimLoop, Trace, always, check_replay, eventually


def test_eventually_says_how_long_it_took() -> None:
    with SimLoop() as loop:
        assert loop.run(eventually(lambda: loop.time() >= 1, within_ms=2000)) == 1000


def test_eventually_raises_when_it_is_late() -> None:
    with SimLoop() as loop:
        with pytest.raises(AssertionError, match="not within 2000 ms: routes agree"):
            loop.run(eventually(lambda: False, within_ms=2000, what="routes agree"))
        assert loop.now_ms == 2000


def test_always_raises_at_the_first_look_that_fails() -> None:
    with SimLoop() as loop:
        loop.run(always(lambda: loop.time() < 5, for_ms=5000))
        with pytest.raises(AssertionError, match="not any more after 1000 ms"):
            loop.run(always(lambda: loop.time() < 6, for_ms=5000))


def test_outages_are_measured_from_the_first_bad_look_to_the_next_good_one() -> None:
    outages = Outages()
    for now_ms, ok in [(0, True), (10, False), (20, False), (30, True), (40, False), (45, True)]:
        outages.observe("a", ok, now_ms)
    assert outages.worst_ms == 20
    outages.check(20)
    with pytest.raises(AssertionError, match=r"1 out for longer than 19 ms: a for 20 ms"):
        outages.check(19)


def test_an_outage_that_goes_on_counts_and_an_excused_one_does_not() -> None:
    outages = Outages()
    outages.observe("a", False, 0)
    outages.observe("a", False, 500)
    outages.observe("b", False, 0)
    outages.excuse("b")
    outages.observe("b", False, 900)
    outages.observe("b", True, 1000)
    assert outages.worst_ms == 500


def test_check_replay_shows_the_first_difference() -> None:
    runs = iter(range(2))

    def run() -> Trace:
        trace = Trace()
        trace.add(0, "a", "same")
        trace.add(1500, "a", "run", next(runs))
        return trace

    with pytest.raises(
        AssertionError, match=r"line 2 differs:\n  1\.500 a run 0\n  1\.500 a run 1"
    ):
        check_replay(run)


def test_a_trace_keeps_the_last_events_and_hashes_all() -> None:
    short, long = Trace(keep=10), Trace()
    for number in range(10_000):
        short.add(number, "a", "tick", number)
        long.add(number, "a", "tick", number)
    assert len(short) == len(long) == 10_000
    assert short.digest() == long.digest()
    assert [entry[0] for entry in short] == list(range(9_990, 10_000))
    assert long.text().splitlines()[-1] == "9.999 a tick 9999"
    short.add(1, "b", "more")
    assert short.digest() != long.digest()


def test_a_digest_does_not_depend_on_when_it_was_asked_for() -> None:
    asked, silent = Trace(), Trace()
    for number in range(100):
        asked.add(number, "a", "tick")
        silent.add(number, "a", "tick")
        asked.digest()
    assert asked.digest() == silent.digest()


def test_checks_run_in_virtual_time() -> None:
    with SimLoop() as loop:
        loop.run(always(lambda: True, for_ms=3_600_000, every_ms=1000))
        assert loop.now_ms == 3_600_000
        loop.run(asyncio.sleep(0))
