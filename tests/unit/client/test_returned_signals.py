"""A handler that returns a signal, where it should have raised it, is understood all the same."""

import pytest

from skylark.client.handler import verdict_said
from skylark.client.verdicts import DONE, RetryLater, Suspend, ToDlq


@pytest.mark.parametrize("signal", [ToDlq("no"), RetryLater(), Suspend(1.0)])
def test_a_returned_signal_counts_as_raised(signal):
    assert verdict_said(signal) == signal.verdict
    assert verdict_said(signal) != DONE


@pytest.mark.parametrize("said", [None, True, False, 0, "x", object()])
def test_anything_else_means_done(said):
    assert verdict_said(said) is DONE
