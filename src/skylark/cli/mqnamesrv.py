"""`mqnamesrv`: RocketMQ's name for `skylark namesrv`."""

from __future__ import annotations

from . import namesrv


def main() -> int:
    """Run a name server; returns the exit code."""
    return namesrv.main(program="mqnamesrv")


if __name__ == "__main__":
    raise SystemExit(main())
