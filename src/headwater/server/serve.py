"""The life of a server: open the log, listen, serve until a signal stops it, and end without losing anything."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import resource
import signal
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from headwater.errors import Invalid, Unavailable
from headwater.limits import DEFAULTS, MIB, SERVER_DEFAULTS
from headwater.opening import open_directory
from headwater.server.access import Access, OpenAccess, check_exposure, loopback
from headwater.server.accesslog import AccessLog
from headwater.server.apps import Application
from headwater.server.connections import Connections
from headwater.server.http import protocol as http
from headwater.server.http.app import HttpApplication
from headwater.server.metrics import CountingDisk, Metrics
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from headwater.server.tls import Certificate

GRACE_S = 10.0  # how long answers under way may take when the server stops
BACKLOG = 2048
KEPT_BYTES = 16 * MIB  # of free memory, for what comes next
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
SWITCH_S = 0.0005  # how long the loop may keep a thread from the interpreter: a commit that is done must be heard of

_log = logging.getLogger("headwater.server")


class ListenAddress(msgspec.Struct, frozen=True):
    """An address to listen on. Port 0 takes any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read `127.0.0.1:7450`, `[::1]:7450`, `:7450` or `7450`; raises Invalid."""
        host, _, port = text.rpartition(":")
        if not port.isdigit() or int(port) > 65_535:
            raise Invalid(f"{text!r} is not an address", hint="write HOST:PORT, as in 127.0.0.1:7450")
        return cls(host.strip("[]") or "127.0.0.1", int(port))


def serve(
    path: Path,
    address: ListenAddress,
    settings: ServerSettings,
    *,
    tcp: ListenAddress | None = None,
    access: Access | None = None,
    certificate: Certificate | None = None,
    access_log: AccessLog | None = None,
    insecure: bool = False,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve a log directory until SIGTERM or SIGINT, over HTTP and, at the address `tcp`, by frames.

    `ready` is called with the URLs, separated by a space, once connections are accepted.

    Raises Invalid if it would be open to the network without authentication, Unavailable if it cannot listen, and what
    keeps the application of the settings from running.
    """
    access = access or OpenAccess()
    for each in (address, tcp):
        if each is not None:
            check_exposure(each.host, access, insecure=insecure, tls=certificate is not None)
    if not access.authenticates and loopback(address.host):
        settings = msgspec.structs.replace(settings, check_host=True)
    _raise_file_limit()
    _keep_memory()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(path, address, tcp, settings, access, certificate, access_log, ready))


async def _serve(
    path: Path,
    address: ListenAddress,
    tcp: ListenAddress | None,
    settings: ServerSettings,
    access: Access,
    certificate: Certificate | None,
    access_log: AccessLog | None,
    ready: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    stopped = _on_signals(loop, certificate, access_log)
    metrics = Metrics(CountingDisk())
    metrics.access_log = access_log
    store = await loop.run_in_executor(None, lambda: open_directory(path, limits=DEFAULTS, disk=metrics.disk))
    service = Service(store, access, settings, metrics)
    service.ignores_credentials = not access.authenticates
    connections = Connections(HttpApplication(service, check_host=settings.check_host), loop)
    try:
        if settings.app is not None and not await _started(service, settings.app, stopped):
            return
        servers = []
        for where, scheme, protocol in _protocols(connections, address, tcp):
            server = await _listen(loop, protocol, where, certificate.context if certificate else None)
            servers.append((server, f"{scheme}s" if certificate else scheme))
        ready(" ".join(_url(server, scheme) for server, scheme in servers))
        renewing = loop.create_task(_renew(certificate)) if certificate is not None else None
        await stopped.wait()
        if renewing is not None:
            renewing.cancel()
        for server, _ in servers:
            server.close()
        await _drain(service, connections)
    finally:
        connections.abort()
        if service.application is not None:
            await service.application.stop()  # after the last request that may use it
        await service.close()
        if access_log is not None:
            access_log.close()
        await loop.run_in_executor(None, store.close)


def _on_signals(
    loop: asyncio.AbstractEventLoop, certificate: Certificate | None, access_log: AccessLog | None
) -> asyncio.Event:
    """Return the event that SIGTERM and SIGINT set; SIGHUP reopens the access log and reads the certificate."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)

    def renew() -> None:
        if access_log is not None:
            access_log.reopen()
        if certificate is not None:
            certificate.renew(now=True)

    loop.add_signal_handler(signal.SIGHUP, renew)
    return stopped


def _url(server: asyncio.Server, scheme: str) -> str:
    """Return the URL at which a server listens."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


async def _drain(service: Service, connections: Connections) -> None:
    """Answer the requests that have arrived, and end streams, for at most `GRACE_S`."""
    service.members.leave()  # before their connections end, which would look like the death of their clients
    connections.stop()
    service.changes.close()
    service.replicas.source.stop()
    service.feeds.close()  # no more events will come for its subscribers
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            while connections.open:
                await asyncio.sleep(0.01)


async def _started(service: Service, app: str, stopped: asyncio.Event) -> bool:
    """Start the application; False if the server is told to stop before it runs. Raises what keeps it from running."""
    service.application = Application(app, service.backend.path, service.limits, service.metrics.application)
    starting = asyncio.ensure_future(service.application.start())
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        return starting.done()
    finally:
        for each in (starting, stopping):
            each.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _renew(certificate: Certificate) -> None:
    """Read a certificate that was replaced, without a restart."""
    while True:
        await asyncio.sleep(SERVER_DEFAULTS.certificate_look_s)
        certificate.renew()


def _protocols(
    connections: Connections, address: ListenAddress, tcp: ListenAddress | None
) -> list[tuple[ListenAddress, str, Callable[[], asyncio.Protocol]]]:
    """Return the protocols to serve: the address, the scheme of its URL, and what makes a connection."""
    spoken: list[tuple[ListenAddress, str, Callable[[], asyncio.Protocol]]]
    spoken = [(address, "http", partial(http.ServerConnection, connections))]
    if tcp is not None:
        from headwater.server.tcp import emit  # which needs the codec of BSON
        from headwater.server.tcp.connection import TcpConnection
        from headwater.server.tcp.handlers import HANDLERS

        connections.service.commits.write_answers(emit.write)
        spoken.append((tcp, "headwater", partial(TcpConnection, connections, HANDLERS)))
    return spoken


async def _listen(
    loop: asyncio.AbstractEventLoop,
    protocol: Callable[[], asyncio.Protocol],
    address: ListenAddress,
    tls: ssl.SSLContext | None,
) -> asyncio.Server:
    try:
        return await loop.create_server(protocol, address.host, address.port, ssl=tls, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"{address.host}:{address.port} cannot be listened on: {error.strerror or error}",
            hint="is another server there? choose others with --http HOST:PORT and --tcp HOST:PORT, or --tcp none",
            code="cannot_listen",
        ) from error


def _keep_memory() -> None:
    """Have the C library keep some memory that is free, where it is glibc.

    Bodies and batches of a megabyte come and go. Given back to the system and got again, each of their pages costs a
    fault: more than ten times as long as it takes to fill it.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, 2)  # each keeps its own
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _raise_file_limit() -> None:
    """Allow as many descriptors as the system does: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
