"""The memory of a server: what is there once it serves, stays.

Most of what a server allocates for a request dies with the answer, by reference counting. Under
load hundreds of requests wait for one flush, and with Python's thresholds the collector would look
at all of them every 700 allocations, in vain.

Frames of megabytes come and go as well. The C library would map each anew and give it back, and the
system would zero every page of it again: with bulk pulls that was two thirds of a broker's time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

# Young objects, then how many young and middle collections go before an older generation's.
_THRESHOLDS = (20_000, 20, 50)
# Of mallopt(3): blocks up to this come from the heap, whose free end is kept up to that.
_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 32 << 20
_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES = -1, 64 << 20


def settle() -> None:
    """Collect once, never look at the survivors again, and look at new objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    _keep_large_blocks()


def _keep_large_blocks() -> None:
    # Only some C libraries have it, and nothing depends on it.
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
