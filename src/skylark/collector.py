"""The garbage collector of a server: what is there once it serves, stays.

Most of what a server allocates for a request dies with the answer, by reference counting. Under
load hundreds of requests wait for one flush, and with Python's thresholds the collector would look
at all of them every 700 allocations, in vain.
"""

from __future__ import annotations

import gc

# Young objects, then how many young and middle collections go before an older generation's.
_THRESHOLDS = (20_000, 20, 50)


def settle() -> None:
    """Collect once, never look at the survivors again, and look at new objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
