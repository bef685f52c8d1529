"""Renew the pages that are made from the code, and check every link between pages.

`make docs` runs it; `--check` changes nothing and fails where a page is stale.
"""

from __future__ import annotations

import pathlib
import re
import sys

from skylark.cli.config import reference_pages

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def stale_pages() -> dict[pathlib.Path, str]:
    """The generated pages whose text is not what the code says, with the text they should have."""
    pages = {DOCS / "reference" / name: text for name, text in reference_pages().items()}
    return {
        path: text
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }


def broken_links() -> list[str]:
    """Links from a page to a file that is not there."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    return [
        f"{page.relative_to(ROOT)}: {link}"
        for page in sorted(pages)
        for link in _LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]


def main() -> int:
    """Renew or check; returns the exit code."""
    stale = stale_pages()
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"stale: {path.relative_to(ROOT)}; run: make docs", file=sys.stderr)
    else:
        for path, text in stale.items():
            path.write_text(text, encoding="utf-8")
            print(f"renewed {path.relative_to(ROOT)}")
        stale = {}
    links = broken_links()
    for link in links:
        print(f"broken link: {link}", file=sys.stderr)
    return 1 if stale or links else 0


if __name__ == "__main__":
    sys.exit(main())
