"""`headwater serve`: a log directory for other programs, over HTTP and TCP."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import SizeType
from headwater.cli.opening import directory_of

if TYPE_CHECKING:
    from headwater.server.settings import ServerSettings


@command(
    examples=[
        "headwater serve data",
        "headwater serve data --http 0.0.0.0:7450 --auth users.json --tls-cert cert.pem --tls-key key.pem",
        "headwater serve data --app shop.py",
        "headwater serve data --cors https://shop.example --segments 16 --segment-bytes 64MiB",
    ]
)
@click.argument("data", metavar="[DATA]", default="data")
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:7450", show_default=True, help="Address for HTTP.")
@click.option(
    "--tcp",
    metavar="HOST:PORT",
    default="127.0.0.1:7451",
    show_default=True,
    help="Address for the protocol over TCP; none to disable it.",
)
@click.option("--auth", metavar="FILE", help="File of users and scopes; see 'headwater auth'.")
@click.option("--access", metavar="NAME[:ARG]", help="Authentication provided by an installed package.")
@click.option("--tls-cert", metavar="FILE", help="Serve HTTPS with this certificate chain, in PEM format.")
@click.option("--tls-key", metavar="FILE", help="Key of the certificate, in PEM format.")
@click.option("--tls-client-ca", metavar="FILE", help="Require client certificates signed by this authority.")
@click.option("--access-log", metavar="FILE", help="Log each request as a line of JSON; - for standard error.")
@click.option("--insecure", is_flag=True, help="Serve the network without authentication.")
@click.option("--app", metavar="MODULE", help="Run this application beside the server: shop.py or package.module:app.")
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help="Allow pages of this origin to call the server; * for all."
)
@click.option(
    "--bus", metavar="TOPIC", default="events", show_default=True, help="Topic of the event bus, /api/events."
)
@click.option(
    "--segments", type=click.IntRange(1), metavar="N", help="Segments that the event bus keeps.  [default: 16]"
)
@click.option("--segment-bytes", type=SizeType(), metavar="SIZE", help="Size of each of them.  [default: 64 MiB]")
@click.option(
    "--heartbeat",
    type=click.FloatRange(0.1, 3600.0),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Interval of heartbeats on idle live streams.",
)
def serve(
    data: str,
    http: str,
    tcp: str,
    auth: str | None,
    access: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    tls_client_ca: str | None,
    access_log: str | None,
    insecure: bool,
    **settings: Any,
) -> None:
    """Serve a log directory over HTTP and TCP. Other programs may have it open at the same time.

    Serves only this machine unless another address is given, which requires --auth. SIGTERM and Ctrl-C end it after
    requests in progress are answered. The application of --app runs in a process of its own, which is restarted when
    it dies and ends with the server.
    """
    from pathlib import Path

    from headwater.server.access import chosen
    from headwater.server.accesslog import AccessLog
    from headwater.server.logins import FileAccess
    from headwater.server.serve import ListenAddress
    from headwater.server.serve import serve as run
    from headwater.server.tls import Certificate

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    logging.getLogger("headwater").propagate = False  # its handler is the program's own
    if auth is not None and access is not None:
        raise click.UsageError("--auth and --access are mutually exclusive")
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise click.UsageError("--tls-cert and --tls-key must be given together")
    address = ListenAddress.parse(http)
    run(
        directory_of(data),
        address,
        _settings(**settings),
        tcp=None if tcp == "none" else ListenAddress.parse(tcp),
        access=FileAccess(auth) if auth is not None else None if access is None else chosen(access),
        certificate=Certificate(tls_cert, tls_key, tls_client_ca) if tls_cert and tls_key else None,
        access_log=None if access_log is None else AccessLog(None if access_log == "-" else Path(access_log)),
        insecure=insecure,
        ready=lambda urls: show.done(f"serving {data} at {urls.replace(' ', ' and ')}"),
    )


def _settings(
    app: str | None,
    cors: tuple[str, ...],
    bus: str,
    segments: int | None,
    segment_bytes: int | None,
    heartbeat: float,
) -> ServerSettings:
    from headwater.server.settings import Bus, ServerSettings

    kept = {"segments": segments, "segment_bytes": segment_bytes}
    return ServerSettings(
        bus=Bus(topic=bus, **{name: value for name, value in kept.items() if value is not None}),
        origins=cors,
        app=app,
        heartbeat_s=heartbeat,
    )
