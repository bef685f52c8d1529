"""A store with checksums beside its log goes to Apache's broker and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from peers import ApacheBroker, OurNameServer, Peers
from test_store_swap import (
    QUEUES,
    SIZES,
    TOPICS,
    all_records,
    name_server,
    send_traffic,
    sizes_of,
    write_our_store,
)

from skylark.clock import SystemClock
from skylark.protocol.record import decode_records
from skylark.store import MessageStore, OsFiles
from skylark.store.sums import check_sums
from skylark.store.tools import check_store
from skylark.testing.stores import make_message, read_all

pytestmark = pytest.mark.interop

__all__ = ["name_server"]  # The fixture.


def sums_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("sums/**/*")
        if path.is_file()
    }


def leave_a_torn_tail(root: Path) -> None:
    """End as in a power cut: sums of records that were never flushed, one of which is torn."""
    store = MessageStore.open(sizes_of(root), OsFiles(), SystemClock())
    store.mark_open()
    results = store.put([make_message("SwapA", n, b"never flushed %d" % n) for n in range(QUEUES)])
    store.begin_flush()
    torn = results[2]
    found = store.log.buffer_at(torn.physical_offset)
    assert found is not None
    buffer, at = found
    buffer[at + 90 : at + 95] = bytes(5)  # Of its body.
    store._release()


def findings(root: Path, ending: str) -> list[str]:
    found = check_store(sizes_of(root)).findings
    if ending == "after a torn tail":
        # Apache's broker leaves index entries of the records that it has cut.
        found = [finding for finding in found if "/index/" not in finding.path]
    return [str(finding) for finding in found]


@pytest.mark.parametrize("ending", ["stopped", "killed", "after a torn tail"])
def test_what_apache_wrote_on_a_store_with_sums_is_all_there(
    peers: Peers, tmp_path: Path, name_server: OurNameServer, ending: str
) -> None:
    home = tmp_path / "apache"
    root = home / "store"
    broker = ApacheBroker(
        peers,
        home,
        name="broker-a",
        name_servers=[name_server.address],
        settings={**SIZES, "defaultTopicQueueNums": str(QUEUES)},
    )
    sent = write_our_store(root, broker.port)
    if ending == "after a torn tail":
        leave_a_torn_tail(root)
    sums = sums_of(root)
    assert len(sums) > 10
    with broker:
        broker.wait_registered([name_server])
        send_traffic(peers, tmp_path / "client", name_server.address, 5000, 60)
        expected = all_records(broker.address)
        if ending == "stopped":
            broker.stop(60)
        else:
            broker.kill()
    total = sum(len(decode_records(records)) for records in expected.values())
    survivors = 2 if ending == "after a torn tail" else 0
    assert total == sum(map(len, sent.values())) + 3 * 60 + survivors
    assert sums_of(root) == sums, "Apache's broker leaves them alone"
    assert findings(root, ending) == []

    for _ in range(2):
        with MessageStore.open(sizes_of(root), OsFiles(), SystemClock()) as store:
            assert not [text for text in store.recovery.problems if "sum" in text]
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    found = b"".join(read_all(store, topic, queue_id))
                    assert found == expected[topic, queue_id]
            last = store.log.mapped.files[-1]
            assert store.sums is not None
            content = store.sums.read(last.start)
            covered = check_sums(last.buffer, 0, 0, last.size_bytes, content)
            assert last.start + covered.matched_end == store.log.appended
    assert findings(root, ending) == []
