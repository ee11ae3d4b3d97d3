"""Who may ask: everybody on this machine, or whoever has the token."""

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from hotlap.records.errors import UsageError

LEAST_TOKEN: Final = 16
LOCAL: Final = frozenset({"127.0.0.1", "localhost", "::1"})
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine can ask there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """That what others can ask has a token. Raises UsageError."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"{host} can be asked by other machines: give --token, or HOTLAP_TOKEN, of 16 characters or more"
        )
    if token is not None and len(token) < LEAST_TOKEN:
        raise UsageError(f"the token has {len(token)} characters; give {LEAST_TOKEN} or more")


class Gate:
    """In front of the application. With a token, each request has to carry it: as the password that a browser asks for,
    with any user name, or as `Authorization: Bearer`. Without one, only names of this machine are answered to, so that
    no page of another site can ask by a name that it has point here."""

    def __init__(self, app: App, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One request."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        headers = dict(scope["headers"])
        if self.token is not None and not self._has_token(headers.get(b"authorization", b"")):
            return await _refuse(
                send, 401, b"the token is missing or wrong", (b"www-authenticate", b'Basic realm="hotlap"')
            )
        if self.token is None and _name(headers.get(b"host", b"")) not in LOCAL:
            return await _refuse(send, 403, b"asked by a name that is not this machine's")
        return await self.app(scope, receive, send)

    def _has_token(self, given: bytes) -> bool:
        """In the same time wherever it differs."""
        kind, _, value = given.partition(b" ")
        if kind.lower() == b"basic":
            try:
                value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                value = b""
        elif kind.lower() != b"bearer":
            value = b""
        return hmac.compare_digest(value.strip(), (self.token or "").encode())


def _name(host: bytes) -> str:
    """Of `Host`, without the port."""
    text = host.decode("latin-1")
    return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0].lower()


async def _refuse(send: Any, status: int, text: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": text})
