"""`mqbroker`: RocketMQ's name for `skylark broker`."""

from __future__ import annotations

from . import broker


def main() -> int:
    """Run a broker; returns the exit code."""
    return broker.main(program="mqbroker")


if __name__ == "__main__":
    raise SystemExit(main())
