"""I04 on a real file system: the model of crashes is not kinder than ext4."""

import pytest
from killed_writer import can_cut_power
from real_replay import campaign

from skylark.testing.files import SimFiles

CUTS_EACH = 5
NAMES = ["steady", "restarts", "retention", "truncation", "tables", "large", "aging", "busy"]


def test_what_ext4_leaves_of_a_trace_is_among_the_states_of_the_model():
    if not can_cut_power():
        pytest.skip("no file system can be mounted and shut down here")
    tally, losses = campaign(NAMES, seed=1, cuts_each=CUTS_EACH)
    assert [str(finding) for finding in tally.findings] == []
    assert tally.states == CUTS_EACH * len(NAMES)
    assert losses > tally.states // 4, "a power cut that takes nothing shows nothing"


def test_the_model_says_what_it_does_not_allow():
    disk = SimFiles(page_bytes=4096)
    disk.make_directory("/d")
    disk.create("/d/a", 1024, reserve=True)
    region = disk.map("/d/a", 1024)
    region.buffer[:600] = b"x" * 600
    written, nothing = b"x" * 600 + bytes(424), bytes(1024)
    assert disk.misfit({"/d/a": written}) is None
    assert disk.misfit({"/d/a": nothing}) is None
    assert disk.misfit({"/d/a": b"x" * 512 + bytes(512)}) is None, "torn between its sectors"
    assert disk.misfit({"/d/a": b"x" * 300 + bytes(724)}) == "/d/a holds what it never held"
    assert disk.misfit({}) == "/d/a is gone, and its name was synced"
    region.sync()
    assert disk.misfit({"/d/a": nothing}) == "/d/a holds what it never held"
    disk.remove("/d/a")
    assert disk.misfit({}) is None
    assert disk.misfit({"/d/a": written}) is None
    disk.sync_directory("/d")
    assert disk.misfit({"/d/a": written}) == "/d/a holds what it never held"
