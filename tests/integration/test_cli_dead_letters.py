"""`skylark dlq` against `skylark up`."""

from __future__ import annotations

import asyncio
import json
import time

from test_cli_messages import address as address
from test_cli_messages import skylark as run

import skylark
from skylark import Message, ReceivedMessage, ToDlq


def give_up_on(address: str, bodies: list[bytes]) -> None:
    """Have a group put messages with its dead letters."""

    async def main() -> None:
        seen = 0

        async def hopeless(_: object) -> None:
            nonlocal seen
            seen += 1
            raise ToDlq("hopeless")

        async with skylark.connect(address) as mq, mq.producer("makers") as producer:
            for body in bodies:
                await producer.send(Message("Letters", body, keys=[body.decode()]))
            async with mq.consumer("billing", {"Letters": "*"}, hopeless, consume_from="first"):
                async with asyncio.timeout(30):
                    while seen < len(bodies):
                        await asyncio.sleep(0.02)

    asyncio.run(main())


def consumed(address: str, count: int) -> list[bytes]:
    """What the group gets when it tries again."""

    async def main() -> list[bytes]:
        found: list[bytes] = []

        async def keep(message: ReceivedMessage) -> None:
            found.append(message.body)

        async with (
            skylark.connect(address) as mq,
            mq.consumer("billing", {"Letters": "*"}, keep, consume_from="first"),
            asyncio.timeout(30),
        ):
            while len(found) < count:
                await asyncio.sleep(0.02)
        return found

    return asyncio.run(main())


def test_dead_letters_are_listed_shown_and_sent_again(address: str) -> None:
    code, out, err = run("dlq", "list", "--json", "-n", address)
    assert (code, json.loads(out), err) == (0, [], "")
    give_up_on(address, [b"one", b"two", b"three"])
    deadline = time.monotonic() + 20
    while json.loads(run("dlq", "list", "--json", "-n", address)[1]) != [
        {"group": "billing", "letters": 3}
    ]:
        assert time.monotonic() < deadline, "they go back to the broker, which announces the topic"
    code, out, _ = run("dlq", "show", "billing", "--json", "-n", address)
    letters = {letter["body"]: letter for letter in json.loads(out)}
    assert set(letters) == {"one", "two", "three"}
    assert letters["one"]["topic"] == "Letters"
    code, out, err = run("dlq", "resend", "billing", letters["two"]["id"], "-n", address)
    assert (code, out, err) == (0, "1 sent to billing again\n", "")
    assert consumed(address, 1) == [b"two"]
    code, out, err = run("dlq", "resend", "billing", "--all", "--yes", "-n", address)
    assert (code, out) == (0, "3 sent to billing again\n")
    assert sorted(consumed(address, 3)) == [b"one", b"three", b"two"]


def test_what_is_not_clear_is_not_done(address: str) -> None:
    for words in ([], ["some-id", "--all"]):
        code, _, err = run("dlq", "resend", "billing", *words, "-n", address)
        assert code != 0
        assert "--all" in err
    code, _, err = run("dlq", "resend", "billing", "no-such-id", "-n", address)
    assert code == 1
    assert "no-such-id" in err
