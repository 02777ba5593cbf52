"""TLS: the server's certificate, and the certificates of clients.

`Certificate` holds the context to serve with, and loads the files again when they have changed. `subject` gives the
name for which a client's certificate stands. Contexts are never changed once they are made, because OpenSSL may be
beginning a connection with one in another thread: a new one takes its place. `renew` is for one thread at a time.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from headwater.disk.disk import Clock, Disk
from headwater.errors import HeadwaterError, Invalid, NotFound
from headwater.limits import SERVER_DEFAULTS

logger = logging.getLogger("headwater.server")

SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "street",
    "domainComponent": "DC",
    "userId": "UID",
    "surname": "SN",
    "givenName": "GN",
}
ESCAPED = str.maketrans({character: f"\\{character}" for character in ',+"\\<>;'} | {"\0": "\\00"})


def context(cert: str | Path, key: str | Path, client_ca: str | Path | None = None) -> ssl.SSLContext:
    """The TLS to serve with: version 1.2 or newer; with `client_ca`, only for clients with a certificate of it.

    `cert` begins with the server's own certificate, those between it and the root follow. Raises NotFound for a missing
    file, Invalid for one that cannot be used.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION  # which would let a client have the server work for nothing
    made.set_alpn_protocols(["http/1.1"])
    _load_chain(made, Path(cert), Path(key))
    if client_ca is not None:
        made.verify_mode = ssl.CERT_REQUIRED
        _load_authority(made, Path(client_ca))
    return made


class Certificate:
    """The TLS context of these files for a listener; connections after a change use the new files."""

    def __init__(
        self,
        cert: str | Path,
        key: str | Path,
        client_ca: str | Path | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files = (Path(cert), Path(key), None if client_ca is None else Path(client_ca))
        self._disk = disk or Disk()
        self._clock = clock or Clock()
        self._seen = self._look()
        self._current = self.context = context(*self._files)
        self.context.sni_callback = self._choose
        self._look_at = self._clock.monotonic() + SERVER_DEFAULTS.certificate_look_s

    def renew(self, *, now: bool = False) -> bool:
        """Load the files again if they have changed, and say whether; looks once a minute, unless it is to be `now`.

        Files that do not fit together, as in the midst of being replaced, change nothing; they are tried again.
        """
        time = self._clock.monotonic()
        if time < self._look_at and not now:
            return False
        self._look_at = time + SERVER_DEFAULTS.certificate_look_s
        seen = self._look()
        if seen == self._seen:
            return False
        try:
            self._current = context(*self._files)
        except HeadwaterError as error:
            logger.warning("the certificate was not reloaded: %s", error)
            return False
        self._seen = seen
        return True

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:  # noqa: ARG002
        """Have a new connection go on with the current context; OpenSSL asks even if the client names no host."""
        connection.context = self._current

    def _look(self) -> list[int | None]:
        return [self._disk.inode(path) for path in self._files if path is not None]


def subject(connection: ssl.SSLObject | ssl.SSLSocket) -> str | None:
    """Return the subject of the client's certificate as RFC 4514 writes it, most specific first: `CN=ada,O=Shop`.

    None if there is none, or it was not verified. The same as `openssl x509 -subject -nameopt RFC2253,-esc_msb` shows.
    """
    certificate = connection.getpeercert()
    if not certificate:
        return None
    return _written(certificate.get("subject", ()))


def _written(names: object) -> str:
    assert isinstance(names, tuple)
    return ",".join("+".join(_pair(name, value) for name, value in reversed(together)) for together in reversed(names))


def _pair(name: str, value: str) -> str:
    text = value.translate(ESCAPED)
    if text.startswith((" ", "#")):
        text = f"\\{text}"
    if text.endswith(" ") and len(value) > 1:
        text = f"{text[:-1]}\\ "
    return f"{SHORT.get(name, name)}={text}"


def _load_chain(made: ssl.SSLContext, cert: Path, key: Path) -> None:
    _present(cert, "certificate")
    _present(key, "key")
    try:
        made.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message, hint = f"the key {key} does not match the certificate {cert}", "check that both belong together"
        else:
            message = f"{cert} and {key} are not a certificate and a key in PEM format: {error.reason or error}"
            hint = "they start with lines such as '-----BEGIN CERTIFICATE-----' and '-----BEGIN PRIVATE KEY-----'"
        raise Invalid(message, hint=hint, code="bad_certificate") from error
    except OSError as error:
        raise Invalid(f"{cert} or {key} cannot be read: {error.strerror}", code="bad_certificate") from error


def _load_authority(made: ssl.SSLContext, client_ca: Path) -> None:
    _present(client_ca, "client certificate authority")
    try:
        made.load_verify_locations(cafile=client_ca)
    except ssl.SSLError as error:
        hint = "it starts with a line such as '-----BEGIN CERTIFICATE-----'"
        message = f"{client_ca} holds no certificates in PEM format: {error.reason or error}"
        raise Invalid(message, hint=hint, code="bad_certificate") from error


def _present(path: Path, what: str) -> None:
    if not path.is_file():
        hint = "docs/SECURITY.md shows how to create test certificates"
        raise NotFound(f"{what} {path} does not exist", hint=hint, code="certificate_not_found", path=str(path))


def _no_password() -> str:
    raise Invalid(
        "the server's key is encrypted, and the server cannot ask for its password",
        hint="decrypt it with 'openssl pkey -in key.pem -out plain.pem', then 'chmod 600 plain.pem'",
        code="bad_certificate",
    )
