"""TLS with real certificates, made by the very commands of docs/SECURITY.md, over real sockets."""

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from headwater.errors import HeadwaterError, Invalid, NotFound
from headwater.server import tls
from headwater.server.http.message import Client
from headwater.server.logins import FileAccess
from tests.server.people import HandClock, add

PAGE = Path(__file__).parent.parent.parent / "docs" / "SECURITY.md"
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def shell(commands: str, where: Path) -> str:
    done = subprocess.run(["bash", "-euc", commands], cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the page's commands make, and a second one, of another authority, below `other`."""
    commands = PAGE.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    where = tmp_path_factory.mktemp("certificates")
    assert shell(commands, where) == "subject=CN=shop,O=Example\n"
    (where / "other").mkdir()
    shell(commands, where / "other")
    return where


@pytest.fixture(params=list(LOOPS))
def run_loop(request: pytest.FixtureRequest) -> Callable[..., str | None]:
    """Connect once, in a loop of either kind; the subject that the server saw."""
    new_loop = LOOPS[request.param]

    def run(serving: ssl.SSLContext, calling: ssl.SSLContext, host: str = "localhost") -> str | None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(connect(serving, calling, host))

    return run


async def connect(serving: ssl.SSLContext, calling: ssl.SSLContext, host: str) -> str | None:
    seen: list[str | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(tls.subject(writer.get_extra_info("ssl_object")))
        writer.write(await reader.readexactly(4))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=calling, server_hostname=host)
            try:
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
            finally:
                writer.transport.abort()
    return seen[0]


def caller(made: Path, client: str | None = None) -> ssl.SSLContext:
    """What a client connects with: it trusts our authority, and may have a certificate."""
    calling = ssl.create_default_context(cafile=made / "ca.pem")
    if client is not None:
        calling.load_cert_chain(made / f"{client}.pem", made / f"{client}.key")
    return calling


def serving(made: Path, *, clients: bool = False) -> ssl.SSLContext:
    return tls.context(made / "server.pem", made / "server.key", made / "ca.pem" if clients else None)


Run = Callable[..., str | None]


def test_a_client_without_a_certificate_is_served_where_none_is_asked_for(run_loop: Run, made: Path) -> None:
    for host in ("localhost", "127.0.0.1"):
        assert run_loop(serving(made), caller(made), host) is None


def test_a_client_certificate_is_seen_only_where_it_is_verified(run_loop: Run, made: Path) -> None:
    assert run_loop(serving(made, clients=True), caller(made, "client")) == "CN=shop,O=Example"
    assert run_loop(serving(made), caller(made, "client")) is None


def test_the_subject_stands_for_a_user(run_loop: Run, made: Path, tmp_path: Path) -> None:
    add(tmp_path / "users.json", "shop", "append:orders.*", subjects="CN=shop,O=Example")
    access = FileAccess(tmp_path / "users.json", clock=HandClock())
    subject = run_loop(serving(made, clients=True), caller(made, "client"))
    user = access.known({}, Client(secure=True, certificate=subject))
    assert user is not None
    assert (user.name, user.may("append", "orders.eu")) == ("shop", True)


def test_who_has_no_certificate_of_the_authority_is_turned_away(run_loop: Run, made: Path) -> None:
    for client in (None, "other/client", "server"):  # the server's own is not for clients
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            run_loop(serving(made, clients=True), caller(made, client))


def test_a_client_turns_away_from_another_server(run_loop: Run, made: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        run_loop(serving(made / "other"), caller(made))
    with pytest.raises(ssl.SSLCertVerificationError):
        run_loop(serving(made), caller(made), "log.example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_are_refused(run_loop: Run, made: Path) -> None:
    served = serving(made)
    assert served.minimum_version is ssl.TLSVersion.TLSv1_2
    for version, works in (
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ):
        calling = caller(made)
        calling.set_ciphers("DEFAULT@SECLEVEL=0")  # else the client itself would refuse
        calling.minimum_version = calling.maximum_version = version
        if works:
            assert run_loop(served, calling) is None
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                run_loop(served, calling)


@pytest.mark.parametrize(
    "subject",
    [
        "/CN=ada",
        "/C=AT/ST=Wien/L=Wien/O=Shop/OU=a/OU=b/CN=ada",
        "/DC=example/DC=shop/UID=ada/emailAddress=ada@shop.example",
        '/O=a,b+c"d;e<f>g\\\\h/CN= #x ',
        "/O=Shop /CN=x\\ ",
        "/O=Shop/CN=#x=y",
        "/O=Shop/CN=ada+UID=17",
        "/O=Kaffeehaus Müller/CN=Zoë",
        "/CN=a/GN=Ada/SN=King/title=Countess/street=Dorset St/serialNumber=7",
    ],
)
def test_a_subject_is_written_as_openssl_does(made: Path, tmp_path: Path, subject: str) -> None:
    together = "-multivalue-rdn" if "+UID" in subject else ""
    shell(
        f"openssl req -utf8 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes {together} -subj '{subject}' "
        f"-keyout client.key -out client.csr; openssl x509 -req -in client.csr -CA {made}/ca.pem -CAkey {made}/ca.key "
        "-CAcreateserial -CAserial serial -days 2 -out client.pem",
        tmp_path,
    )
    expected = shell("openssl x509 -in client.pem -noout -subject -nameopt RFC2253,-esc_msb,utf8", tmp_path)
    calling = caller(made)
    calling.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    with asyncio.Runner() as runner:
        seen = runner.run(connect(serving(made, clients=True), calling, "localhost"))
    assert f"subject={seen}\n" == expected


def problem(*files: Path | None) -> HeadwaterError:
    cert, key, client_ca = files
    assert cert is not None
    assert key is not None
    with pytest.raises(HeadwaterError) as caught:
        tls.context(cert, key, client_ca)
    return caught.value


def test_files_that_are_missing_or_do_not_fit_are_told_with_a_hint(made: Path, tmp_path: Path) -> None:
    cert, key, missing = made / "server.pem", made / "server.key", tmp_path / "missing.pem"
    for files, what in (
        ((missing, key, None), "certificate"),
        ((cert, missing, None), "key"),
        ((cert, key, missing), "client certificate authority"),
    ):
        error = problem(*files)
        assert isinstance(error, NotFound)
        assert (error.code, error.message) == ("certificate_not_found", f"{what} {missing} does not exist")
        assert "SECURITY.md" in error.hint
    empty = tmp_path / "empty.pem"
    empty.touch()
    encrypted = tmp_path / "encrypted.key"
    shell(f"openssl pkey -in {key} -aes256 -passout pass:x -out {encrypted}", tmp_path)
    for files, told in (
        ((cert, made / "client.key", None), f"the key {made}/client.key does not match the certificate {cert}"),
        ((empty, key, None), "are not a certificate and a key in PEM"),
        ((cert, empty, None), "are not a certificate and a key in PEM"),
        ((key, cert, None), "are not a certificate and a key in PEM"),
        ((cert, key, empty), "holds no certificates in PEM"),
        ((cert, key, key), "holds no certificates in PEM"),
        ((cert, encrypted, None), "encrypted"),
    ):
        error = problem(*files)
        assert isinstance(error, Invalid)
        assert error.code == "bad_certificate"
        assert told in error.message
        assert error.hint


@pytest.fixture
def renewable(made: Path, tmp_path: Path) -> Path:
    for name in ("server.pem", "server.key", "ca.pem"):
        shutil.copy(made / name, tmp_path / name)
    return tmp_path


def test_new_files_are_served_without_a_restart(run_loop: Run, made: Path, renewable: Path) -> None:
    clock, other = HandClock(), made / "other"
    files = [renewable / name for name in ("server.pem", "server.key", "ca.pem")]
    certificate = tls.Certificate(*files, clock=clock)
    assert run_loop(certificate.context, caller(made, "client")) == "CN=shop,O=Example"
    assert not certificate.renew(now=True)  # nothing has changed
    shutil.copy(other / "server.pem", renewable)
    shutil.copy(other / "server.key", renewable)
    clock.now += 59
    assert not certificate.renew()
    clock.now += 1
    assert certificate.renew()
    assert not certificate.renew(now=True)
    with pytest.raises(ssl.SSLCertVerificationError):
        run_loop(certificate.context, caller(made, "client"))
    calling = caller(other)
    calling.load_cert_chain(made / "client.pem", made / "client.key")
    for host in ("localhost", "127.0.0.1"):  # the second is not named to the server
        assert run_loop(certificate.context, calling, host) == "CN=shop,O=Example"
    shutil.copy(other / "ca.pem", renewable)
    assert certificate.renew(now=True)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        run_loop(certificate.context, calling)
    assert run_loop(certificate.context, caller(other, "client")) == "CN=shop,O=Example"


def test_a_key_of_another_kind_takes_the_place_of_the_old_one(run_loop: Run, made: Path, renewable: Path) -> None:
    certificate = tls.Certificate(renewable / "server.pem", renewable / "server.key")
    shell(
        "openssl req -newkey rsa:2048 -nodes -subj '/CN=localhost' -keyout server.key -out server.csr; "
        f"openssl x509 -req -in server.csr -CA {made}/other/ca.pem -CAkey {made}/other/ca.key -CAcreateserial "
        f"-CAserial serial -days 2 -extfile {made}/server.ext -out server.pem",
        renewable,
    )
    assert certificate.renew(now=True)
    assert run_loop(certificate.context, caller(made / "other")) is None
    with pytest.raises(ssl.SSLCertVerificationError):
        run_loop(certificate.context, caller(made))


def test_half_a_new_pair_changes_nothing_and_is_tried_again(
    run_loop: Run, made: Path, renewable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    certificate = tls.Certificate(renewable / "server.pem", renewable / "server.key", clock=clock)
    shutil.copy(made / "other" / "server.pem", renewable / "server.pem")
    with caplog.at_level(logging.WARNING):
        for told in (1, 2):
            assert not certificate.renew(now=True)
            assert len(caplog.messages) == told
    assert caplog.messages[-1].startswith("the certificate was not reloaded: the key")
    assert run_loop(certificate.context, caller(made)) is None
    shutil.copy(made / "other" / "server.key", renewable / "server.key")
    assert certificate.renew(now=True)
    assert run_loop(certificate.context, caller(made / "other")) is None
