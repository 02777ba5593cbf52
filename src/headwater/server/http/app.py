"""The HTTP application: turns a request into a response. Routes, rights, parameters, errors.

`protocol` and `asgi` call it; all of it belongs to the loop's thread.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from time import perf_counter

from headwater.errors import Denied, HeadwaterError, out_of_memory
from headwater.server.access import require
from headwater.server.http.errors import of_status, response_of
from headwater.server.http.message import Client, Headers, Request, Response
from headwater.server.http.prompt_appends import PromptAppends
from headwater.server.http.route import Route
from headwater.server.http.routes import Router, allowed
from headwater.server.rights import NOBODY
from headwater.server.service import Service

UNCHECKED: Headers = (("headwater-credentials", "unchecked"),)
LINK = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"))
OWN_SITE = ("same-origin", "none")  # of Sec-Fetch-Site: a page of this server, or the user
_log = logging.getLogger("headwater.server")


class HttpApplication:
    """Answers requests from one store."""

    def __init__(self, service: Service, *, check_host: bool = False) -> None:
        """`check_host` refuses a `Host` that could be a web site's: for a server without authentication."""
        self.service = service
        self._router = Router()
        self._check_host = check_host
        self._budget = service.budget
        self.prompt_appends = PromptAppends(self)

    # Everything

    async def answer(self, request: Request) -> Response:
        """Return the response to a request, also if it fails."""
        begun = perf_counter()
        request.budget = self._budget
        try:
            if request.failure is not None:
                raise request.failure
            response = await self._answer(request)
        except Denied as error:
            challenge = self.service.access.challenge if error.code == "unauthenticated" else ""
            response = self.failure(error, (("www-authenticate", challenge),) if challenge else ())
        except HeadwaterError as error:
            response = self.failure(error)
        except ConnectionError as error:
            response = of_status(400, "the client disconnected", "disconnected", str(error))
        except Exception as error:  # noqa: BLE001  # a bug of ours must not end the server, nor tell its insides
            response = _failed(error)
        finally:
            self._budget.give_back(request.held)
        headers = self.headers_of(request)
        if headers:
            response.headers = (*response.headers, *headers)
        self.service.metrics.route(request.method, request.pattern).answered(response.status, perf_counter() - begun)
        return response

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            self._check_sender(request)
            return self._options(request)
        route = self.route_of(request)
        if route.right.needed is not None:
            access = self.service.access
            known = access.known(request.headers, request.client)
            if known is None:
                known = await self.service.blocking(access.check, request.headers, request.client)
            request.user = known
        self.authorize(request, route)
        return await route.handler(self.service, request)

    def route_of(self, request: Request) -> Route:
        """Return the route of a request; raises NotFound and Invalid, and Denied where its sender may not ask."""
        if request.admitted and request.route is not None:
            return request.route
        self._check_sender(request)
        route = request.route = self._router.find(request.method, request.path)
        self._check_site(request, route)
        request.admitted = True
        return route

    def authorize(self, request: Request, route: Route) -> None:
        """Raise Denied unless the request's user has the right of the route; Invalid for an unknown parameter."""
        needed, of = route.right
        if needed is not None and needed != "user" and of != "each topic":
            require(request.user, needed, route.topic(request.path, self.service.settings.bus.topic))
        request.query.only(route.query_names)

    def headers_of(self, request: Request) -> Headers:
        """Return the headers that any response to a request has: for browsers, and for ignored credentials."""
        return self._cors(request) + (UNCHECKED if self.service.ignored(request.headers) else ())

    def failure(self, error: BaseException, headers: Headers = ()) -> Response:
        """Return the answer that tells of an error."""
        if not isinstance(error, HeadwaterError):
            return _failed(error)
        self.service.metrics.failed(error.code)
        return response_of(error, headers)

    def refused(self, response: Response) -> None:
        """Count what could not even be read as a request."""
        self.service.metrics.route("", "").answered(response.status, 0.0)

    def broke_off(self, error: BaseException) -> None:
        """An answer could not be sent to its end: it is too late to tell the client why."""
        code = error.code if isinstance(error, HeadwaterError) else "internal"
        self.service.metrics.failed(code)
        _log.error("a response was cut off: %s", error)

    def ended(self, request: Request, status: int, bytes_in: int, bytes_out: int, seconds: float) -> None:
        """An answer was sent, or as much of it as the client took."""
        log = self.service.metrics.access_log
        if log is not None:
            user = "" if request.user is NOBODY else request.user.name
            target = request.target.decode("latin-1")
            known = request.client.address, user, request.method, target, request.pattern, status
            log.note(*known, bytes_in, bytes_out, seconds)

    # Browsers

    def _options(self, request: Request) -> Response:
        methods = allowed(self._router.methods(request.path))
        headers: Headers = (("allow", methods),)
        if self._allowed_origin(request) is not None and "access-control-request-method" in request.headers:
            wanted = request.headers.get("access-control-request-headers", "")
            headers += (("access-control-allow-methods", methods), ("access-control-max-age", "600"))
            if wanted:
                headers += (("access-control-allow-headers", wanted),)
        return Response(204, headers)

    def _cors(self, request: Request) -> Headers:
        origin = self._allowed_origin(request)
        if origin is None:
            return ()
        exposed = "headwater-partition, headwater-id, headwater-durability, headwater-member, headwater-place"
        return (
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", exposed),
            ("vary", "origin"),
        )

    def _allowed_origin(self, request: Request) -> str | None:
        origin, named = request.headers.get("origin"), self.service.settings.origins
        return origin if origin is not None and (origin in named or "*" in named) else None

    def _check_sender(self, request: Request) -> None:
        """Refuse foreign host names, and pages of other sites: browsers send their requests with all credentials."""
        if not self._host_is_fine(request.headers, request.client):
            raise Denied(
                f"the Host {request.headers.get('host', '')!r} is not allowed",
                hint="use localhost or an IP address; other names need authentication",
                code="forbidden",
            )
        origin = request.headers.get("origin")
        if origin is None or self._allowed_origin(request) is not None:
            return
        if origin.partition("://")[2] != request.headers.get("host"):
            raise Denied(
                f"pages from {origin} may not call this server", hint=f"allow them: --cors {origin}", code="forbidden"
            )

    def _check_site(self, request: Request, route: Route) -> None:
        """Refuse what a browser sends without `Origin` on behalf of another site's page, as for an image.

        Another port of this host is the same site to a browser, but another origin. A link to a page that needs no
        right may be followed.
        """
        site = request.headers.get("sec-fetch-site")
        if (
            site is None
            or site in OWN_SITE
            or "*" in self.service.settings.origins
            or self._allowed_origin(request) is not None
        ):
            return
        if route.right.needed is None and all(request.headers.get(name) == value for name, value in LINK):
            return
        raise Denied(
            f"pages from other origins may not call this server (Sec-Fetch-Site: {site[:40]})",
            hint="allow them with --cors ORIGIN and use CORS requests; or open the address directly",
            code="forbidden",
        )

    def _host_is_fine(self, headers: Mapping[str, str], client: Client) -> bool:
        """Return whether the name that was asked for is ours; remembered for the connection."""
        if not self._check_host:
            return True
        host = headers.get("host", "")
        known = client.cache.get("host")
        if known == host:
            return True
        fine = is_own_name(host)
        if fine:
            client.cache["host"] = host
        return fine


def is_own_name(host: str) -> bool:
    """Return whether a `Host` header names this machine in a way that no foreign name server could."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("", "localhost") or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _failed(error: BaseException) -> Response:
    _log.error("a request failed", exc_info=error)
    if isinstance(error, MemoryError):
        return response_of(out_of_memory("the server cannot respond"))
    return of_status(500, "the server failed", "internal", "see the server's log")
