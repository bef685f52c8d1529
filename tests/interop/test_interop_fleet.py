"""mqadmin at a name server of ours that has a key; our commands on a broker of Apache's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from admin_session import AdminSession
from our_broker import OurBroker
from peers import ApacheBroker, OurNameServer, Peers

from skylark.admin import connect

pytestmark = pytest.mark.interop

KEY = "the key of this cluster"


@pytest.mark.parametrize("takes_acl", [True, False])
def test_mqadmin_signs_with_the_registration_key_where_that_is_allowed(
    peers: Peers, tmp_path: Path, takes_acl: bool
) -> None:
    settings = {"registrationKey": KEY, "registrationKeyAcl": str(takes_acl).lower()}
    home = tmp_path / "tool"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "tools.yml").write_text(f"accessKey: operator\nsecretKey: {KEY}\n")
    with (
        OurNameServer(tmp_path / "namesrv", settings=settings) as server,
        OurBroker(
            tmp_path / "broker", name="broker-a", name_servers=[server.address],
            settings={"registrationKey": KEY},
        ),
        AdminSession(peers, home, server.address) as tool,
    ):  # fmt: skip
        assert "broker-a" in tool.run("clusterList")  # Reading needs no key.
        answers = [
            tool.run("wipeWritePerm", "-b", "broker-a"),
            tool.run("updateKvConfig", "-s", "N", "-k", "K", "-v", "V"),
        ]
        for answer in answers:
            assert ("registration key" in answer) == (not takes_acl), answer
            assert ("OK, " in answer or "success" in answer) == takes_acl, answer


def test_a_broker_of_rocketmq_is_seen_copied_and_drained(peers: Peers, tmp_path: Path) -> None:
    async def main(address: str) -> None:
        async with connect(address) as admin:
            await admin.create_topic("Orders", broker="apache", read_queues=3, write_queues=2)
            status = await admin.cluster_status()
            assert status.problems == ()
            theirs = status.group("apache")
            assert (theirs.is_writable, sorted(theirs.own_topics)) == (True, ["Orders"])
            plan = await admin.plan_growth("ours")
            (grown,) = await admin.grow(plan)
            assert (grown.queues_before, grown.queues_after) == (2, 4)
            async for progress in admin.drain("apache", settle_ms=0):
                last = progress
            assert last.is_done
            perms = {place.broker: place.perm for place in (await admin.topic("Orders")).places}
            assert perms == {"apache": 4, "ours": 6}
            await admin.undrain("apache")
            perms = {place.broker: place.perm for place in (await admin.topic("Orders")).places}
            assert perms == {"apache": 6, "ours": 6}

    with (
        OurNameServer(tmp_path / "namesrv") as server,
        ApacheBroker(peers, tmp_path / "apache", name="apache", name_servers=[server.address]),
        OurBroker(tmp_path / "ours", name="ours", name_servers=[server.address]) as ours,
    ):
        ours.wait_ready()
        asyncio.run(main(server.address))
