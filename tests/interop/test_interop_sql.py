"""Messages together with rows of a real PostgreSQL server, from Debian's packages."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from our_broker import our_cluster
from peers import free_ports

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from sql_world import OTHERS, STEPS, PendingAt, SqlWorld

pytestmark = pytest.mark.interop

# The producers know nothing of each other, and are asked all the same.
QUICK = {
    "transactionTimeOut": "300",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
}


def programs() -> Path:
    """Where PostgreSQL's server programs are; installed where they are not."""
    for attempt in range(2):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
        if found:
            return Path(found[-1]).parent
        if attempt == 0:
            quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "update", "-qq"], check=True, env=quiet)
            subprocess.run(["apt-get", "install", "-y", "-qq", "postgresql"], check=True, env=quiet)
    raise RuntimeError("apt-get installed postgresql, and there is no initdb")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """A server of our own, on loopback; yields what comes after the driver in its URL."""
    place = programs()
    user = pwd.getpwnam("postgres")
    # The server refuses to be root, so its folder belongs to its user.
    folder = Path(f"/tmp/skylark-postgres-{os.getpid()}")
    folder.mkdir(mode=0o700)
    os.chown(folder, user.pw_uid, user.pw_gid)
    (port,) = free_ports(1)

    def run(*command: str) -> None:
        subprocess.run(
            ["runuser", "-u", "postgres", "--", *command],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )

    data = str(folder / "data")
    try:
        run(str(place / "initdb"), "-D", data, "-A", "trust", "-U", "shop")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
        log = str(folder / "log")
        run(str(place / "pg_ctl"), "-D", data, "-o", options, "-l", log, "-w", "start")
        try:
            yield f"shop@127.0.0.1:{port}/postgres"
        finally:
            run(str(place / "pg_ctl"), "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def world(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlWorld]:
    url = f"postgresql+psycopg://{postgres}"
    with (
        our_cluster(tmp_path_factory.mktemp("sql"), **QUICK) as (name_server, _),
        closing(SqlWorld(name_server.address, url, url)) as world,
    ):
        yield world


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_producer_killed_at_any_step_loses_nothing_and_leaves_no_ghost(
    world: SqlWorld, kind: str
) -> None:
    topic, expected = f"Orders-{kind}", {}
    for turn in range(3):
        for step, is_there in {**STEPS, **OTHERS}.items():
            key = f"{kind}-{step}-{turn}"
            said = world.produce(topic, key, step, kind)
            assert said == {"raise": "raised", "none": "done"}.get(step, f"dies at {step}")
            expected[key] = is_there
    with world.resolver():  # No producer is alive.
        world.wait_over(PendingAt(world.address))
    world.judge(topic, expected)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_transaction_that_was_taken_for_dead_fails_in_the_database_as_well(
    world: SqlWorld, kind: str
) -> None:
    topic = f"Late-{kind}"
    for step in ("late", "slow"):  # Before it has written its order, and after.
        late = world.start(topic, f"{step}-{kind}", step, kind)
        assert late.stdout is not None
        assert late.stdout.readline().strip() == "waits"
        late.send_signal(signal.SIGSTOP)
        with world.resolver():
            world.wait_over(PendingAt(world.address))
        late.send_signal(signal.SIGCONT)
        assert world.let_go(late) == "too late"
    world.judge(topic, {f"late-{kind}": False, f"slow-{kind}": False})


def test_a_transaction_about_to_commit_is_waited_for(world: SqlWorld) -> None:
    """Its marker is written and holds the key: the resolver cannot decide against it."""
    from sqlalchemy import text

    slow = world.start("About", "about-1", "marked", "sync")
    with world.resolver():
        assert slow.stdout is not None
        assert slow.stdout.readline().strip() == "waits"
        slow.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + 30
        waiting = text("select count(*) from pg_locks where not granted")
        count = 0
        while not count and time.monotonic() < deadline:
            with world.engine.connect() as connection:
                count = connection.execute(waiting).scalar_one()
            time.sleep(0.05)
        assert count, "the resolver did not wait for the key"
        slow.send_signal(signal.SIGCONT)
        assert world.let_go(slow) == "done"
        world.wait_over(PendingAt(world.address))
    world.judge("About", {"about-1": True})
