"""`python -m skylark` is the command `skylark`."""

from .cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
