"""`headwater views resume`: resume a projection that an error has stopped."""

from __future__ import annotations

import click

from headwater.cli import show
from headwater.cli.arguments import complete_projection, data_argument
from headwater.cli.opening import open_log
from headwater.cli.views import in_directory, views


@views.command(examples=["headwater views resume data basket"])
@data_argument
@click.argument("name", metavar="NAME", shell_complete=complete_projection)
def resume(data: str, name: str) -> None:
    """Resume the projection NAME, which an error has stopped, at the event it stopped at.

    The running application notices within a second. If you have fixed its code, restart the application instead: that
    resumes its projections as well.
    """
    from headwater.views import status

    with open_log(data, mode="existing") as opened:
        hw = in_directory(opened, "resume", name)
        binders = status.resume(hw, name)
        running = any(view.name == name and view.state == "running" for view in hw.views())
    show.done(f"projection {show.printable(name)} resumes with binder {', '.join(map(show.printable, binders))}")
    if not running:
        show.note(f"it is processed when the application runs — headwater views run {data} --app MODULE")
