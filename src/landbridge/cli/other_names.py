"""What commands are called elsewhere. Whoever types a name that other tools have is told ours."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

#: What typer raises for a wrong command line (click's ClickException, wherever this typer keeps it).
Refusal: type[Exception] = typer.BadParameter.__mro__[2]
#: A name of other tools, and ours; those that a noun has are told.
OURS = {
    name: ours
    for names, ours in (
        # Verbs.
        (("ls",), ("list",)),
        (("list",), ("show",)),
        (("info", "describe", "get", "view", "inspect"), ("show", "info")),
        (("add", "new", "make", "declare"), ("create", "register", "add")),
        (("rm", "remove", "del", "drop", "destroy"), ("delete", "remove", "revoke")),
        (("edit", "set", "alter", "modify", "configure"), ("update", "set")),
        (("reset", "rewind"), ("seek",)),
        (("watch", "follow"), ("tail", "follow")),
        (("select", "switch"), ("use",)),
        # Commands without a verb.
        (("pub", "produce", "send", "put"), ("publish",)),
        (("sub", "consume", "read", "recv"), ("subscribe",)),
        (("req",), ("request",)),
        (("start", "server", "serve", "daemon", "broker"), ("up",)),
        (("stream", "streams", "queue", "queues", "subject"), ("topic",)),
        (("consumer", "consumers", "subscription", "subscriptions"), ("group",)),
        (("dlq", "dead-letter", "dead-letters"), ("letter",)),
        (("cron", "timer"), ("schedule",)),
        (("login", "profile", "config"), ("context",)),
        (("user", "users", "account", "acl", "auth"), ("service", "token")),
        (("ui", "web", "dashboard"), ("console",)),
        (("ping", "check", "health"), ("doctor", "info")),
        (("trace",), ("where", "why")),
        (("cluster", "nodes"), ("node",)),
    )
    for name in names
}


class CommandNames(TyperGroup):
    """The commands of a noun. For a name that isn't one of them, ours is suggested."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Refusal as error:
            ours = [name for name in OURS.get(args[0], ()) if name in self.commands]
            if ours:
                names = " or ".join(f"'{name}'" for name in ours)
                error.message = f"No such command '{args[0]}'. Did you mean {names}?"  # type: ignore[attr-defined]
            raise
