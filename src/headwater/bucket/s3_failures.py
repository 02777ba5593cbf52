"""From what an S3 store answers, or does not, to what the caller can do about it. Pure functions."""

from __future__ import annotations

import re
from typing import NamedTuple

from headwater.errors import Denied, HeadwaterError, Invalid, NotFound, Unavailable, Unsupported

_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_METADATA = re.compile(r"https?://([^/ ]+/latest/(api/token|meta-data/)|169\.254\.170\.)")
"""Where machines on AWS ask for their credentials."""
_ADDRESS = re.compile(r"https?://[^/ )]+")

_DENIED_HINTS = {
    "ExpiredToken": "the session token has expired: get a new one",
    "InvalidAccessKeyId": "check AWS_ACCESS_KEY_ID",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "SignatureDoesNotMatch": "check AWS_SECRET_ACCESS_KEY",
}
_TEMPORARY = {"RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "InternalError", "ServiceUnavailable"}
_ELSEWHERE = {"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"}


class FailureDetails(NamedTuple):
    """What is known of a failed request: no status if there was no answer, no code if it gave none."""

    status: int
    code: str
    line: str


def answer_of(error: Exception) -> FailureDetails:
    """Read it from the text of the client's error, which is all that it gives."""
    text = str(error)
    status = _STATUS.search(text)
    said = text[status.end() :] if status else ""
    code = _CODE.search(said)
    line = text.partition("\n")[0].partition(": <")[0]
    return FailureDetails(int(status[1]) if status else 0, code[1] if code else "", line)


def missing_bucket(url: str, error: Exception) -> NotFound | None:
    """Return the error if it is the bucket that is not there, not the object."""
    if answer_of(error).code != "NoSuchBucket":
        return None
    return NotFound(f"{url}: there is no such bucket", hint="create it, or check its name", code="bucket_not_found")


def refusal(url: str, error: Exception, answered: bool) -> HeadwaterError | None:
    """Return the error to raise if trying again cannot help; None if it may.

    `answered`: whether the store ever did. Credentials that cannot be had at first will not come.
    """
    answer = answer_of(error)
    if _METADATA.search(answer.line):
        return None if answered else _without_credentials(url)
    refused = _misdirected(url, answer)
    if refused is not None:
        return refused
    if answer.status == 501 or "ETag Header missing" in answer.line:
        return without_conditions(url)
    if answer.code in _TEMPORARY or answer.status in (0, 408, 429) or answer.status >= 500:
        return None
    if answer.status in (401, 403):
        hint = _DENIED_HINTS.get(answer.code, "it must allow GetObject, PutObject, DeleteObject and ListBucket")
        return Denied(f"{url}: access denied ({answer.code or answer.status})", hint=hint)
    return Invalid(f"{url}: {answer.line} {answer.code}".rstrip(), code="store_refused")


def _misdirected(url: str, answer: FailureDetails) -> Invalid | None:
    if "builder error" in answer.line:
        return Invalid(f"{url}: {answer.line}", hint="an endpoint with http:// needs allow_http=true", code="bad_url")
    if "redirect without LOCATION" in answer.line or answer.code in _ELSEWHERE:
        return Invalid(f"{url}: the bucket is in another region", hint="add ?region=…", code="wrong_region")
    return None


def without_conditions(url: str) -> Unsupported:
    """The store does not know conditions, or gives no ETag to name in one."""
    return Unsupported(
        f"{url} does not support conditional writes; without them, writers overwrite each other's events",
        hint="use a store that enforces If-None-Match and If-Match",
        code="no_conditional_writes",
    )


def gave_up(url: str, error: Exception, after_s: float) -> Unavailable:
    """The store failed for too long."""
    return Unavailable(
        f"{url} has failed for {after_s:g} s; the last request may or may not be done: {answer_of(error).line}",
        hint="check the network and the store's health, then try again",
        code="store_unavailable",
    )


def never_answered(url: str, error: Exception, after_s: float) -> Unavailable:
    """The store failed for too long, and has not answered anything before."""
    line = answer_of(error).line
    asked = _ADDRESS.search(line)
    address = f" at {asked[0]}" if asked is not None and asked[0] not in url else ""
    why = line.rpartition(" - ")[2].partition(" for url (")[0]
    return Unavailable(
        f"{url}{address} cannot be reached: it has failed for {after_s:g} s: {why}",
        hint="are the bucket and the endpoint right, is the store up, and do proxies and firewalls let you through?",
        code="store_unavailable",
    )


def _without_credentials(url: str) -> Denied:
    return Denied(
        f"{url}: no credentials found",
        hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role",
        code="no_credentials",
    )
