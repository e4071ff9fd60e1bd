"""A web app that is built when somebody first asks for it."""

from collections.abc import Awaitable, Callable, MutableMapping
from pkgutil import resolve_name
from typing import TypeAlias

Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class LazyApp:
    """Stand in for a page until its first request, so that FastAPI is not imported before."""

    def __init__(self, builder: str) -> None:
        """Keep the name of what builds the app, as `package.module:function`; import nothing."""
        self._builder = builder
        self._app: App | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Build the app if need be, and let it answer."""
        if self._app is None:
            build_app: Callable[[], App] = resolve_name(self._builder)
            self._app = build_app()
        await self._app(scope, receive, send)
