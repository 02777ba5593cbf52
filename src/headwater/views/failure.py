"""An error raised by the code of an application, with its event, as it is shown and stored."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime

import msgspec

from headwater.event import Event
from headwater.info import ViewError

ERROR_CHARACTERS_MAX = 4000  # of an error and its trace that are kept

_decode_error = msgspec.json.Decoder(ViewError)


def describe(event: Event, error: object) -> ViewError:
    """Return an error of the user's code, with the event that it was called for."""
    trace = ""
    if isinstance(error, BaseException):
        frames = traceback.extract_tb(error.__traceback__)[1:]  # without the call here
        trace = _clean("".join(traceback.format_list(frames))[-ERROR_CHARACTERS_MAX:])
        told = f"{type(error).__name__}: {_text(error)}"
    else:
        told = str(error)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    place = event.topic, event.partition, event.offset, str(event.id), event.type
    return ViewError(*place, _clean(told[:ERROR_CHARACTERS_MAX]), trace, now)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # it is the user's code, too
        return "(it cannot be shown)"


def _clean(text: str) -> str:
    """Without what UTF-8 does not have."""
    return text.encode(errors="replace").decode()


def encode_error(error: ViewError) -> str:
    """As it is kept."""
    return msgspec.json.encode(error).decode()


def decode_error(text: str | None) -> ViewError | None:
    """From what is kept; None if there is none."""
    return None if text is None else _decode_error.decode(text)
