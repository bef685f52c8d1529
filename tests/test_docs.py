"""The documentation says what the code does, and its links lead somewhere."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent


def test_generated_pages_are_up_to_date_and_links_lead_somewhere() -> None:
    script = ROOT / "docs" / "generate.py"
    result = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_decisions_are_numbered_without_a_gap() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
