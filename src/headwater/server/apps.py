"""Runs the application of a server: user code in a separate process, so that it cannot stall or crash the server.

The process is `headwater views run` with one end of a socket pair. The server sends named queries over it
(views/query_server.py). When the server ends, even by a kill, the socket closes and the process exits. When the process
dies, it is restarted with growing delays. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from pathlib import Path
from typing import Any

from headwater.backoff import delay_s
from headwater.errors import HeadwaterError, Invalid, Unavailable
from headwater.limits import ServerLimits
from headwater.server.metrics import ApplicationMeter
from headwater.views import query_server
from headwater.views.query_server import BrokenApplication, QueryCall, QueryFailure, QueryReply, Ready

END_S = 10.0  # how long it may take to stop; then it is killed
PAUSE_S, PAUSE_MAX_S = 0.5, 30.0  # before it is started again
WELL_S = 60.0  # after this long, a start counts as successful: delays start again from the first

_log = logging.getLogger("headwater.server")


class Application:
    """The application, restarted until it is stopped."""

    def __init__(self, address: str, data: Path, limits: ServerLimits, meter: ApplicationMeter) -> None:
        """`address` is what `--app` said, `data` the log's directory."""
        self._address = address
        self._data = data
        self._limits = limits
        self._meter = meter
        self._process: _ApplicationProcess | None = None
        self._supervising: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it; returns when it runs. Raises what keeps it from that, as a module that cannot be imported."""
        self._meter.up = False
        process = await self._launch()
        self._supervising = asyncio.get_running_loop().create_task(self._supervise(process))

    async def ask(self, name: str, arguments: dict[str, Any]) -> bytes:
        """Have a query answered, as JSON. Raises what it raised, or Unavailable while the application is down."""
        process = self._process
        if process is None:
            raise Unavailable("the application is down", hint="it is being started again", code="application_down")
        return await process.ask(name, arguments)

    async def stop(self) -> None:
        """End the process, by force if it must be. May be called twice, and before it was started."""
        supervising, self._supervising = self._supervising, None
        if supervising is not None:
            supervising.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await supervising

    async def _launch(self) -> _ApplicationProcess:
        process = await _ApplicationProcess.begin(self._address, self._data, self._limits)
        try:
            async with asyncio.timeout(self._limits.application_start_s):
                await process.ready()
        except TimeoutError as error:
            await process.end()
            raise Unavailable(
                f"{self._address} did not start within {self._limits.application_start_s:g} s",
                hint="check what runs when the module is imported",
                code="app_broken",
            ) from error
        except BaseException:
            await process.end()
            raise
        self._process, self._meter.up = process, True
        return process

    async def _supervise(self, process: _ApplicationProcess | None) -> None:
        """Start it again whenever it ends, until this is cancelled."""
        loop = asyncio.get_running_loop()
        tries, began_s = 1, loop.time()
        try:
            while True:
                pause_s = delay_s(tries, PAUSE_S, PAUSE_MAX_S, spread=0)
                if process is not None:
                    told = await process.over()
                    await self._let_go()
                    process = None
                    if loop.time() - began_s > WELL_S:
                        tries, pause_s = 1, PAUSE_S
                    _log.error("the application %s; restarting in %g s", told, pause_s)
                await asyncio.sleep(pause_s)
                tries, began_s = tries + 1, loop.time()
                self._meter.restarts += 1
                try:
                    process = await self._launch()
                except (HeadwaterError, OSError) as error:
                    pause_s = delay_s(tries, PAUSE_S, PAUSE_MAX_S, spread=0)
                    _log.error("the application cannot be started: %s; retrying in %g s", error, pause_s)
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        process, self._process, self._meter.up = self._process, None, False
        if process is not None:
            await process.end()


class _ApplicationProcess:
    """One life of the application."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limits: ServerLimits,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def begin(cls, address: str, data: Path, limits: ServerLimits) -> _ApplicationProcess:
        """Start the process. What it prints goes to standard error, as what it complains of."""
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            command = (sys.executable, "-m", "headwater.cli", "views", "run", str(data), "--app", address)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    "--server-fd",
                    str(descriptor),
                    pass_fds=(descriptor,),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=sys.stderr.fileno(),
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer, limits)

    async def ready(self) -> None:
        """Wait until it runs; raises what it says that keeps it from that, or Invalid if it only ends."""
        try:
            said = await self._receive()
        except (asyncio.IncompleteReadError, OSError):
            code = await self._process.wait()
            hint = "see its output above"
            raise Invalid(f"the application {_ended(code)} before it was ready", hint=hint, code="app_broken") from None
        if isinstance(said, BrokenApplication):
            raise query_server.raised_error(said.error)
        if not isinstance(said, Ready):
            raise Invalid("the application sent an unexpected message instead of being ready", code="bad_message")
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def ask(self, name: str, arguments: dict[str, Any]) -> bytes:
        """Send a question, and wait for its answer for a limited time."""
        if len(self._waiting) >= self._limits.queries_max:
            raise Unavailable(
                "too many queries are waiting for the application", hint="try again soon", code="overloaded"
            )
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._writer.write(query_server.framed(QueryCall(number, name, arguments)))
            async with asyncio.timeout(self._limits.query_s):
                return await answer
        except TimeoutError as error:
            raise Unavailable(
                f"the query {name!r} did not finish within {self._limits.query_s:g} s", code="query_timeout"
            ) from error
        finally:
            del self._waiting[number]

    async def over(self) -> str:
        """Wait until it ends, or does not keep to what was agreed; tells how it went."""
        assert self._listening is not None
        ending = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait((ending, self._listening), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():  # it has closed its socket, as a rule because it ends
                await asyncio.wait((ending,), timeout=END_S)
            return _ended(ending.result()) if ending.done() else "closed its connection"
        finally:
            ending.cancel()

    async def end(self) -> None:
        """Stop it, by force if it takes too long; pending queries fail."""
        if self._listening is not None:
            self._listening.cancel()
        down = Unavailable("the application has ended", hint="it is being started again", code="application_down")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(down)
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            _log.warning("the application does not stop; killing it")
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _listen(self) -> None:
        """Hand out answers until it says nothing more."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, HeadwaterError):
            while True:
                said = await self._receive()
                answer = self._waiting.get(said.id) if isinstance(said, QueryReply | QueryFailure) else None
                if answer is None or answer.done():  # the caller no longer waits
                    continue
                if isinstance(said, QueryReply):
                    answer.set_result(bytes(said.answer))
                elif isinstance(said, QueryFailure):
                    answer.set_exception(query_server.raised_error(said.error))

    async def _receive(self) -> query_server.Message:
        length = query_server.length_of(await self._reader.readexactly(query_server.LENGTH.size))
        return query_server.message_of(await self._reader.readexactly(length))


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
