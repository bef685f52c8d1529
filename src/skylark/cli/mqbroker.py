"""`mqbroker`: RocketMQ's name for `skylark broker`."""

from __future__ import annotations

import gc


def main() -> int:
    """Run the server; returns the exit code."""
    # Nothing becomes garbage while modules load; a server that is up switches the collector on.
    gc.disable()
    from . import broker

    return broker.main(program="mqbroker")


if __name__ == "__main__":
    raise SystemExit(main())
