"""skylark doctor: what it sees on a machine, real or made up."""

from pathlib import Path

import pytest

from skylark.cli import doctor, main
from skylark.errors import ConfigError


def machine(root: Path, kind: str, scheduler: str, maps: int = 65_530) -> Path:
    """Files as /proc and /sys would have them, with one disk mounted on /."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(
        f"21 1 8:1 / / rw,relatime - {kind} /dev/sda1 rw\n"
        "22 21 0:5 / /nowhere rw - tmpfs tmpfs rw\n"
    )
    (root / "proc/sys/vm").mkdir(parents=True)
    (root / "proc/sys/vm/max_map_count").write_text(f"{maps}\n")
    queue = root / "sys/dev/block/8:1/queue"
    queue.mkdir(parents=True)
    (queue / "scheduler").write_text(scheduler + "\n")
    return root


def findings(root: Path, data: Path) -> dict[str, doctor.Finding]:
    return {finding.what: finding for finding in doctor.examine(data, root=root)}


def test_it_reports_the_file_system_and_the_scheduler_of_the_data_directory(tmp_path: Path) -> None:
    found = findings(machine(tmp_path / "m", "ext4", "none [mq-deadline] kyber"), tmp_path)
    assert found["file system"] == ("file system", "ok", "ext4 at /", "")
    assert found["I/O scheduler"] == ("I/O scheduler", "ok", "mq-deadline", "")


def test_another_scheduler_or_file_system_gets_advice(tmp_path: Path) -> None:
    found = findings(machine(tmp_path / "m", "btrfs", "none mq-deadline [bfq]"), tmp_path)
    assert found["file system"].state == "advice"
    assert found["I/O scheduler"].state == "advice"
    assert found["I/O scheduler"].found == "bfq"


@pytest.mark.parametrize("kind", ["tmpfs", "nfs4"])
def test_a_disk_that_cannot_keep_a_store_is_bad(tmp_path: Path, kind: str) -> None:
    assert findings(machine(tmp_path / "m", kind, "[none]"), tmp_path)["file system"].state == "bad"


def test_few_maps_get_advice_with_the_command(tmp_path: Path) -> None:
    found = findings(machine(tmp_path / "m", "ext4", "[none]", maps=100), tmp_path)
    assert found["mapped files"].advice == "sysctl vm.max_map_count=65530"


def test_a_store_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    found = findings(machine(tmp_path / "m", "xfs", "[none]"), tmp_path / "not" / "yet")
    assert found["file system"].found == "xfs at /"


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a directory; name one with --data"):
        findings(tmp_path, tmp_path / "file")


def test_the_command_prints_a_line_for_each_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["doctor", "--data", str(tmp_path)]) in (0, 1)
    shown = capsys.readouterr().out
    for what in ("python", "file system", "I/O scheduler", "disk space", "open files", "clock"):
        assert what in shown
