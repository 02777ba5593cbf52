"""`headwater serve`: a log directory for other programs, over HTTP."""

from __future__ import annotations

import logging

import click

from headwater.cli import show
from headwater.cli.app import command
from headwater.cli.arguments import Size


@command(
    examples=[
        "headwater serve data",
        "headwater serve data --http 0.0.0.0:7450 --auth users.json --tls-cert cert.pem --tls-key key.pem",
        "headwater serve data --cors https://shop.example --segments 16 --segment-bytes 64MiB",
    ]
)
@click.argument("data", metavar="[DATA]", default="data")
@click.option("--http", metavar="HOST:PORT", default="127.0.0.1:7450", show_default=True, help="Where to listen.")
@click.option("--insecure", is_flag=True, help="Serve the network without asking who somebody is.")
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Let pages of this site call the server; * for all.")
@click.option("--bus", metavar="TOPIC", default="events", show_default=True, help="The topic behind /api/events.")
@click.option("--segments", type=click.IntRange(1), metavar="N", help="How many segments the bus keeps.  [default: 16]")
@click.option("--segment-bytes", type=Size(), metavar="SIZE", help="How large each is.  [default: 64 MiB]")
def serve(
    data: str,
    http: str,
    insecure: bool,
    cors: tuple[str, ...],
    bus: str,
    segments: int | None,
    segment_bytes: int | None,
) -> None:
    """Serve a log directory over HTTP, beside any program that has it open.

    Only this machine is served unless another address is given, which needs --auth. SIGTERM and Ctrl-C end it when all that was
    asked is answered.
    """
    from pathlib import Path

    from headwater.server.serve import Address
    from headwater.server.serve import serve as run
    from headwater.server.settings import Bus, Settings

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.INFO)
    kept = {"segments": segments, "segment_bytes": segment_bytes}
    settings = Settings(
        bus=Bus(topic=bus, **{name: value for name, value in kept.items() if value is not None}), origins=cors
    )
    run(
        Path(data),
        Address.parse(http),
        settings,
        insecure=insecure,
        ready=lambda url: show.done(f"serving {data} at {url}"),
    )
