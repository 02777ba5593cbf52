"""The address of a server, credentials and the TLS context. Immutable values without I/O."""

from __future__ import annotations

import base64
import ssl
from os import PathLike
from urllib.parse import quote, urlsplit

import msgspec

from headwater.errors import Invalid

PORTS = {"http": 7450, "https": 443}  # by scheme
HINT = "write http://host:7450"

Path = str | PathLike[str]


class ServerAddress(msgspec.Struct, frozen=True):
    """The address of a server. `prefix` is where it is mounted, without a slash at its end."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Parse an address; raises Invalid, whose message never repeats a password."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise Invalid(f"the address of the server is not valid: {error}", hint=HINT) from None
        if parts.username is not None or parts.password is not None:
            raise Invalid(
                f"the address of {parts.hostname} contains a user or a password, and addresses end up in logs",
                hint="give token= or user=(name, password); on the command line, HEADWATER_TOKEN or --token-file",
                code="credentials_in_address",
            )
        default = PORTS.get(parts.scheme)
        if default is None or not parts.hostname or parts.query or parts.fragment:
            raise Invalid(f"{text!r} is not the address of a server", hint=HINT)
        prefix = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        return cls(parts.scheme, parts.hostname, default if port is None else port, prefix)

    @property
    def secure(self) -> bool:
        """Return whether it uses TLS."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Return host and port, as the `Host` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.prefix}"


class Credentials(msgspec.Struct, frozen=True):
    """Credentials: a token, or a name and a password, or neither."""

    token: str | None = None
    user: tuple[str, str] | None = None

    @classmethod
    def of(cls, token: str | None, user: tuple[str, str] | None) -> Credentials:
        """Check credentials; raises Invalid."""
        if token is not None and user is not None:
            raise Invalid("both a token and a user were given", hint="give only one of them")
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise Invalid("the token is not valid", hint="'headwater auth add' prints it: one word in ASCII")
        if user is not None and ":" in user[0]:
            raise Invalid("a user's name must not contain a colon")
        return cls(token, user)

    @property
    def header(self) -> str | None:
        """Return the `Authorization` header; None if nothing was given."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is not None:
            return f"Basic {base64.b64encode(':'.join(self.user).encode()).decode()}"
        return None


def tls_context(address: ServerAddress, ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what TLS needs: who is trusted (the system's authorities, or those of `ca`), and the client's certificate.

    None for an address without. Raises Invalid for files that cannot be used, or that there is no use for.
    """
    if not address.secure:
        if ca is not None or cert is not None or key is not None:
            raise Invalid(f"certificates were given, but {address} is not encrypted", hint="use https://")
        return None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
        elif key is not None:
            raise Invalid("a key was given without its certificate", hint="give tls_cert= too")
    except OSError as error:  # ssl.SSLError is one
        named = ", ".join(str(each) for each in (ca, cert, key) if each is not None)
        raise Invalid(f"TLS cannot use {named}: {error}", hint="give files in PEM format") from error
    context.set_alpn_protocols(["http/1.1"])
    return context
