"""TLS on the same port: modes, client certificates, reload, limits. Real sockets, both loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import ssl
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import trustme
from net_harness import ECHO, LATER, Raw, Service, address_of, channels, on_both_loops, run, until

from skylark.errors import ConfigError, ConnectFailed, TransportError
from skylark.net import ClientAuth, Handler, Listener, NetConfig, Switchboard, TlsMode
from skylark.net.tls import Certificates, TlsSession, client_context
from skylark.protocol.command import Command
from skylark.protocol.exchange import AnyRequest, Peer, Response
from skylark.protocol.frame import encode_frames

MIB = 1024 * 1024


@dataclass
class Pki:
    """An authority, a server's files, a client's files."""

    folder: pathlib.Path
    authority: trustme.CA

    @property
    def trust(self) -> str:
        return str(self.folder / "trust.pem")

    def issue(self, name: str, authority: trustme.CA | None = None) -> tuple[str, str]:
        """Write a certificate and its key; return their paths."""
        made = (authority or self.authority).issue_cert("127.0.0.1", common_name=name)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return str(cert), str(key)

    def server(self, **settings: Any) -> dict[str, Any]:
        cert, key = self.issue("server")
        return {"tls_cert_path": cert, "tls_key_path": key, **settings}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def pki(tmp_path: pathlib.Path, authority: trustme.CA) -> Pki:
    authority.cert_pem.write_to_path(str(tmp_path / "trust.pem"))
    return Pki(tmp_path, authority)


async def ask(listener: Listener, tls: ssl.SSLContext | None, body: bytes = b"x") -> bytes:
    async with channels(tls=tls) as peers:
        answer = await peers.call(address_of(listener), Command.request(ECHO, body=body), 5000)
        return bytes(answer.body)


def lines(caplog: pytest.LogCaptureFixture, where: str = "skylark.net.link") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == where]


@on_both_loops
class TestModes:
    def test_permissive_speaks_whichever_the_peer_speaks(self, loop_name: str, pki: Pki) -> None:
        async def main() -> None:
            async with Service().listener(**pki.server()) as listener:
                assert await ask(listener, client_context(pki.trust)) == b"x"
                assert await ask(listener, None) == b"x"
                assert await ask(listener, client_context()) == b"x"

        run(loop_name, main())

    def test_enforcing_closes_plain_text(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            settings = pki.server(tls_mode=TlsMode.ENFORCING)
            service = Service()
            async with service.listener(**settings) as listener:
                assert await ask(listener, client_context(pki.trust)) == b"x"
                with await Raw.to(listener) as plain:
                    await plain.send(encode_frames([Command(ECHO)]))
                    assert await plain.wait_closed() == b""
                assert service.served == [ECHO]

        run(loop_name, main())
        (line,) = lines(caplog)
        assert "plain text where TLS is required" in line

    def test_disabled_closes_a_tls_hello(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with Service().listener(tls_mode=TlsMode.DISABLED) as listener:
                assert await ask(listener, None) == b"x"
                with pytest.raises(TransportError):
                    await ask(listener, client_context(pki.trust))

        run(loop_name, main())
        assert len([line for line in lines(caplog) if "TLS is disabled" in line]) == 1

    def test_a_tls_client_at_a_plain_server_fails_cleanly(self, loop_name: str, pki: Pki) -> None:
        class Plain(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport.write(encode_frames([Command(ECHO)]))  # type: ignore[attr-defined]

        async def main() -> None:
            server = await asyncio.get_running_loop().create_server(Plain, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            async with channels(tls=client_context()) as peers:
                with pytest.raises(ConnectFailed, match="TLS"):
                    await peers.call(f"127.0.0.1:{port}", Command.request(ECHO), 1000)
            server.close()

        run(loop_name, main())

    def test_a_certificate_of_a_stranger_is_refused_by_the_client(
        self, loop_name: str, pki: Pki
    ) -> None:
        async def main() -> None:
            cert, key = pki.issue("stranger", trustme.CA())
            settings = {"tls_cert_path": cert, "tls_key_path": key}
            async with Service().listener(**settings) as listener:
                with pytest.raises(ConnectFailed, match="CERTIFICATE_VERIFY_FAILED"):
                    await ask(listener, client_context(pki.trust))
                assert await ask(listener, client_context()) == b"x"

        run(loop_name, main())


@on_both_loops
class TestClientCertificates:
    @pytest.mark.parametrize("auth", list(ClientAuth))
    @pytest.mark.parametrize("shown", ["ours", "none", "stranger's"])
    def test_who_must_show_what(
        self,
        loop_name: str,
        pki: Pki,
        auth: ClientAuth,
        shown: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def main() -> None:
            cert = key = ""
            if shown == "ours":
                cert, key = pki.issue("client")
            elif shown == "stranger's":
                cert, key = pki.issue("client", trustme.CA())
            context = client_context(pki.trust, cert, key)
            settings = pki.server(tls_client_auth=auth, tls_trust_path=pki.trust)
            async with Service().listener(**settings) as listener:
                if accepted:
                    assert await ask(listener, context) == b"x"
                else:
                    with pytest.raises(TransportError):
                        await ask(listener, context)
                    await until(lambda: not listener.links)

        accepted = (
            auth == ClientAuth.NONE
            or shown == "ours"
            or (auth == ClientAuth.OPTIONAL and shown == "none")
        )
        run(loop_name, main())
        refused = [line for line in lines(caplog) if "TLS handshake" in line]
        assert len(refused) == (0 if accepted else 1)


@on_both_loops
class TestTraffic:
    def test_large_bodies_go_both_ways(self, loop_name: str, pki: Pki) -> None:
        async def main() -> None:
            body = random.Random(3).randbytes(4 * MIB)
            tls = client_context(pki.trust)
            async with Service().listener(**pki.server()) as listener, channels(tls=tls) as peers:
                request = Command.request(ECHO, body=body)
                calls = [peers.call(address_of(listener), request, 20_000) for _ in range(3)]
                for answer in await asyncio.gather(*calls):
                    assert answer.body == body

        run(loop_name, main())

    def test_many_calls_share_one_encrypted_connection(self, loop_name: str, pki: Pki) -> None:
        async def main() -> None:
            tls = client_context(pki.trust)
            async with Service().listener(**pki.server()) as listener, channels(tls=tls) as peers:
                calls = [
                    peers.call(address_of(listener), Command.request(ECHO, body=b"%d" % n), 5000)
                    for n in range(500)
                ]
                answers = await asyncio.gather(*calls)
                assert [answer.body for answer in answers] == [b"%d" % n for n in range(500)]
                assert listener.accepted_total == 1

        run(loop_name, main())

    def test_the_server_asks_back_inside_tls(self, loop_name: str, pki: Pki) -> None:
        async def ask_back(request: AnyRequest, peer: Peer) -> Response:
            return Response(body=(await peer.call(Command.request(307), 5000)).body)

        async def main() -> None:
            service = Service()
            service.handlers[34] = Handler(None, ask_back)
            board = Switchboard({307: Handler(None, lambda *_: Response(body=b"me"))})
            async with service.listener(**pki.server()) as listener:
                tls = client_context(pki.trust)
                async with channels(tls=tls, switchboard=board) as peers:
                    answer = await peers.call(address_of(listener), Command.request(34), 5000)
                    assert answer.body == b"me"

        run(loop_name, main())

    def test_a_deaf_peer_is_held_back_and_cut_inside_tls_too(
        self, loop_name: str, pki: Pki
    ) -> None:
        async def main() -> None:
            service = Service()
            settings = pki.server(stalled_write_timeout_ms=300)
            async with service.listener(**settings) as listener:
                with await Raw.to(listener, receive_buffer=65_536) as raw:
                    session = await handshake(raw, client_context(pki.trust))
                    requests = [Command(108, n, fields={"size": "400000"}) for n in range(60)]
                    session.send(encode_frames(requests))
                    await raw.send(session.take_output())
                    await until(lambda: not listener.links)
                assert len(service.served) < 60

        run(loop_name, main())

    def test_draining_answers_inside_tls(self, loop_name: str, pki: Pki) -> None:
        async def main() -> None:
            service = Service()
            listener = await service.listener(**pki.server()).__aenter__()
            async with channels(tls=client_context(pki.trust)) as peers:
                call = asyncio.create_task(
                    peers.call(address_of(listener), Command.request(LATER), 5000)
                )
                await until(lambda: service.served == [LATER])
                leaving = asyncio.create_task(listener.__aexit__(None, None, None))
                await asyncio.sleep(0.05)
                service.released.set()
                assert (await call).code == 0
                await leaving

        run(loop_name, main())

    def test_garbage_inside_and_under_tls_is_closed(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            async with Service().listener(**pki.server()) as listener:
                with await Raw.to(listener) as inside:
                    session = await handshake(inside, client_context(pki.trust))
                    session.send(bytes(8))
                    await inside.send(session.take_output())
                    await inside.wait_closed()
                with await Raw.to(listener) as under:
                    await handshake(under, client_context(pki.trust))
                    await under.send(b"\x17\x03\x03\x00\x20" + bytes(32))
                    await under.wait_closed()
                with await Raw.to(listener) as hello:
                    await hello.send(b"\x16\x03\x01\x00\x20" + bytes(32))
                    assert (await hello.wait_closed())[:1] == b"\x15", "an alert says why"
                await until(lambda: not listener.links)
                assert await ask(listener, client_context(pki.trust)) == b"x"

        run(loop_name, main())
        assert len(lines(caplog)) == 3


async def handshake(raw: Raw, context: ssl.SSLContext) -> TlsSession:
    """Be a TLS client on a bare socket."""
    session = TlsSession(context, server_side=False)
    session.receive(b"")
    while not session.is_established:
        await raw.send(session.take_output())
        data = await raw.loop.sock_recv(raw.sock, 65_536)
        assert data, "closed during the handshake"
        session.receive(data)
    await raw.send(session.take_output())
    return session


@on_both_loops
class TestLimits:
    def test_a_handshake_that_stops_is_closed(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            settings = pki.server(tls_handshake_timeout_ms=100)
            async with Service().listener(**settings) as listener:
                with await Raw.to(listener) as raw:
                    session = TlsSession(client_context(), server_side=False)
                    session.receive(b"")
                    await raw.send(session.take_output()[:50])
                    await raw.wait_closed()

        run(loop_name, main())
        (line,) = lines(caplog)
        assert "no TLS handshake within 100 ms" in line

    def test_a_handshake_and_then_silence_is_closed(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            settings = pki.server(first_frame_timeout_ms=500)
            async with Service().listener(**settings) as listener:
                with await Raw.to(listener) as raw:
                    await handshake(raw, client_context())
                    await raw.wait_closed()

        run(loop_name, main())
        (line,) = lines(caplog)
        assert "no whole frame within 500 ms" in line

    def test_half_handshakes_beyond_the_cap_are_refused_and_given_back(
        self, loop_name: str, pki: Pki
    ) -> None:
        async def main() -> None:
            settings = pki.server(tls_handshakes_max=5)
            async with Service().listener(**settings) as listener:
                with contextlib.ExitStack() as socks:
                    for _ in range(5):
                        raw = socks.enter_context(await Raw.to(listener))
                        await raw.send(b"\x16\x03\x01")
                    await until(lambda: len(listener._handshakes) == 5)
                    with await Raw.to(listener) as late:
                        await late.send(b"\x16\x03\x01")
                        assert await late.wait_closed() == b""
                    assert await ask(listener, None) == b"x", "plain peers are not concerned"
                await until(lambda: not listener._handshakes)
                for _ in range(7):
                    assert await ask(listener, client_context()) == b"x"
                for _ in range(7):
                    with await Raw.to(listener) as broken:
                        await broken.send(b"\x16\x03\x01\x00\x20" + bytes(32))
                        await broken.wait_closed()
                await until(lambda: not listener._handshakes)

        run(loop_name, main())

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
    def test_old_versions_are_refused(
        self, loop_name: str, pki: Pki, version: ssl.TLSVersion
    ) -> None:
        async def main() -> None:
            context = client_context()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = context.maximum_version = version
            context.set_ciphers("ALL:@SECLEVEL=0")
            async with Service().listener(**pki.server()) as listener:
                with pytest.raises(ConnectFailed):
                    await ask(listener, context)

        run(loop_name, main())

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_current_versions_are_served(
        self, loop_name: str, pki: Pki, version: ssl.TLSVersion
    ) -> None:
        async def main() -> None:
            context = client_context(pki.trust)
            context.minimum_version = context.maximum_version = version
            async with Service().listener(**pki.server()) as listener:
                assert await ask(listener, context, bytes(300_000)) == bytes(300_000)

        run(loop_name, main())


@on_both_loops
class TestReload:
    def test_a_new_certificate_is_used_without_a_restart(
        self, loop_name: str, pki: Pki, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", logger="skylark.net")

        async def main() -> None:
            async with Service().listener(**pki.server()) as listener:
                old = await shown(listener)
                async with channels(tls=client_context(pki.trust)) as peers:
                    to = address_of(listener)
                    await peers.call(to, Command.request(ECHO), 5000)
                    pki.issue("server")
                    assert await shown(listener) != old
                    # Those who were connected stay so, on the old one.
                    await peers.call(to, Command.request(ECHO), 5000)
                    assert listener.accepted_total == 3

        run(loop_name, main())
        assert len([line for line in lines(caplog, "skylark.net.tls") if "reloaded" in line]) == 1

    @pytest.mark.parametrize("damage", ["garbage", "missing", "half replaced", "empty"])
    def test_a_bad_new_file_keeps_the_old_certificate(
        self, loop_name: str, pki: Pki, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def main() -> None:
            settings = pki.server()
            async with Service().listener(**settings) as listener:
                old = await shown(listener)
                spoil(pki, settings["tls_cert_path"], damage)
                for _ in range(3):
                    assert await shown(listener) == old
                pki.issue("server")
                assert await shown(listener) != old

        run(loop_name, main())
        errors = [line for line in lines(caplog, "skylark.net.tls") if "stays in force" in line]
        assert len(errors) == 1, "one line for one bad file, not one for each connection"


def spoil(pki: Pki, cert: str, damage: str) -> None:
    path = pathlib.Path(cert)
    if damage == "garbage":
        path.write_bytes(b"-----BEGIN CERTIFICATE-----\nnonsense\n")
    elif damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        other, _ = pki.issue("other")
        os.replace(other, path)  # The key is still the old one.


async def shown(listener: Listener) -> bytes:
    """The certificate that a new connection is shown."""
    with await Raw.to(listener) as raw:
        session = await handshake(raw, client_context())
        certificate = session._ssl.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


class TestSettings:
    def test_files_that_cannot_be_used_are_refused_at_the_start(self, pki: Pki) -> None:
        cert, key = pki.issue("server")
        _, other_key = pki.issue("other")
        missing = str(pki.folder / "missing.pem")
        for settings in (
            {"tls_cert_path": missing, "tls_key_path": key},
            {"tls_cert_path": cert, "tls_key_path": other_key},
            {"tls_cert_path": key, "tls_key_path": key},
        ):
            with pytest.raises(ConfigError, match="TLS file"):
                Certificates(NetConfig(**settings))

    def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(self, pki: Pki) -> None:
        cert, key = pki.issue("server")
        serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
        plain = serialization.load_pem_private_key(pathlib.Path(key).read_bytes(), None)
        pathlib.Path(key).write_bytes(
            plain.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        with pytest.raises(ConfigError, match="TLS file"):
            Certificates(NetConfig(tls_cert_path=cert, tls_key_path=key))

    def test_files_that_do_not_go_together_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="tlsCertPath"):
            NetConfig(tls_mode=TlsMode.ENFORCING)
        with pytest.raises(ConfigError, match="together"):
            NetConfig(tls_cert_path="a")
        with pytest.raises(ConfigError, match="tlsTrustPath"):
            NetConfig(tls_cert_path="a", tls_key_path="b", tls_client_auth=ClientAuth.REQUIRE)

    def test_a_clients_files_that_cannot_be_used_are_refused(self, pki: Pki) -> None:
        with pytest.raises(ConfigError, match="client"):
            client_context(str(pki.folder / "missing.pem"))
        with pytest.raises(ConfigError, match="client"):
            client_context(pki.trust, pki.trust, pki.trust)


class TestSession:
    """TlsSession alone, without a socket."""

    @pytest.fixture
    def pair(self, pki: Pki) -> tuple[TlsSession, TlsSession]:
        server = Certificates(NetConfig(**pki.server())).context()
        return (
            TlsSession(client_context(pki.trust), server_side=False),
            TlsSession(server, server_side=True),
        )

    def shake(self, pair: tuple[TlsSession, TlsSession]) -> None:
        client, server = pair
        for _ in range(4):
            server.receive(
                client.take_output() if client.receive(server.take_output()) == b"" else b""
            )
        assert client.is_established
        assert server.is_established
        client.receive(server.take_output())

    def test_closing_in_any_state_is_harmless(self, pair: tuple[TlsSession, TlsSession]) -> None:
        client, server = pair
        server.close()
        client.close()
        client.close()

    def test_bytes_cross_whatever_their_size_and_split(
        self, pair: tuple[TlsSession, TlsSession]
    ) -> None:
        self.shake(pair)
        client, server = pair
        rng = random.Random(5)
        for size in (0, 1, 16_384, 16_385, 100_000, MIB):
            data = rng.randbytes(size)
            client.send(data)
            wire = client.take_output()
            plain = b""
            at = 0
            while at < len(wire):
                step = rng.choice([1, 5, 100, 5_000, 70_000])
                plain += server.receive(wire[at : at + step])
                at += step
            assert plain == data

    def test_a_goodbye_ends_the_stream_quietly(self, pair: tuple[TlsSession, TlsSession]) -> None:
        self.shake(pair)
        client, server = pair
        client.send(b"last words")
        client.close()
        assert server.receive(client.take_output()) == b"last words"
        assert server.receive(b"") == b""
        server.close()
