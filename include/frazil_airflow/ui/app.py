"""A web app that is built by its first request."""

from collections.abc import Awaitable, Callable, MutableMapping
from pkgutil import resolve_name
from typing import TypeAlias

Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class LazyApp:
    """Build an ASGI app at its first request, so that loading the plugin imports no FastAPI."""

    def __init__(self, builder: str) -> None:
        """Store the name of the function that builds the app, as `package.module:function`."""
        self._builder = builder
        self._app: App | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Build the app if this is the first request, and pass the request on."""
        if self._app is None:
            build_app: Callable[[], App] = resolve_name(self._builder)
            self._app = build_app()
        await self._app(scope, receive, send)
