"""`mqnamesrv`: RocketMQ's name for `skylark namesrv`."""

from __future__ import annotations

import gc


def main() -> int:
    """Run the server; returns the exit code."""
    # Nothing becomes garbage while modules load; a server that is up switches the collector on.
    gc.disable()
    from . import namesrv

    return namesrv.main(program="mqnamesrv")


if __name__ == "__main__":
    raise SystemExit(main())
