"""`python -m skylark.cli` is the command `skylark`."""

from .main import main

if __name__ == "__main__":
    raise SystemExit(main())
