"""``landbridge mail``: messages of a topic that are sent as mails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import making
from landbridge.cli.options import (
    START,
    Commands,
    ContextName,
    Topic,
    given,
    option,
    span,
    start_of,
)
from landbridge.cli.outlets import Name, OutletFlags, add_commands, read_secret
from landbridge.cli.output import columns

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import MailRow

app = Commands(no_args_is_help=True, help="Mail outlets: messages of a topic that are sent as mails.")

LIST = columns(
    "Topic@cyan | Mail=name@cyan | Server=server | State | Circuit | Lag:count@yellow | Delivered:count | "
    "Failed:count@red | Buried:count@red | Last success=last_success_at:moment | Trouble@red"
)
SHOW = columns(
    "Server=server | User | From=sender | To:list | Subject | Body | HTML=html | Digest | State | Circuit | "
    "Owner | Group | Lag:count@yellow | Delivered:count | Failed:count@red | Buried:count@red | "
    "Last success=last_success_at:moment | Failing since=failing_since:moment | "
    "Blocked until=blocked_until:moment | Disabled=disabled_why@red | Trouble@red | Ordered | Rate | "
    "Match | Paused=paused_at:moment | Paused by | Note"
)


class MailFlags(OutletFlags):
    """The options of a mail outlet."""

    user: str | None = option("Who shows itself to the server.", default="nobody")
    password_file: Path | None = option(
        "The user's password: the first line of a file, or '-' for standard input.", metavar="FILE"
    )
    subject: str | None = option(
        "Template of the subject.", metavar="TEMPLATE", default="{{ topic }}: message {{ offset }}"
    )
    body: str | None = option("Template of the text.", metavar="TEMPLATE", default="{{ payload }}")
    html: bool | None = option("The text is HTML, and what is filled in is escaped.", "--html/--plain")
    digest_every: float | None = span(
        "One mail for all that has come this long after the first message; 0s for each message alone."
    )
    digest_most: int | None = option("With --digest-every: or for so many messages.", default="100")

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        from landbridge.core.mail.spec import MailDigest

        options = super().as_asked() | self.given("user", "subject", "body", "html")
        options |= given(password=read_secret(self.password_file, "password"))
        if self.digest_every is not None:
            most = given(most=self.digest_most)
            options["digest"] = MailDigest(every=self.digest_every, **most) if self.digest_every else None
        elif self.digest_most is not None:
            raise typer.BadParameter("--digest-most goes with --digest-every")
        return options


@app.command()
def create(
    topic: Topic,
    name: Name,
    server: str = option(
        "Where mails are handed over: smtp://HOST:PORT (STARTTLS), smtps://…; smtp+plain://… in the clear.",
        metavar="URL",
        value=...,
    ),
    sender: str = option("The address of the header From.", "--from-address", metavar="ADDRESS", value=...),
    to: list[str] = option("A recipient: an address, or a template of one. Repeatable.", value=...),
    *,
    options: MailFlags,
    start: str | None = start_of(START, "latest"),
    context: ContextName = None,
) -> None:
    """Create a mail outlet. It reads the topic in your name, so you need the scope subscribe:TOPIC. In
    templates, {{ payload.NAME }} is a value of the message.

    Examples:
      landbridge mail create alerts ops --server smtps://mail.example.com --from-address bus@example.com --to ops@example.com --user bus --password-file pw
      landbridge mail create alerts own --server smtp://mail.lan --from-address bus@example.com --to '{{ payload.mail }}' --subject 'Alert: {{ payload.text }}'
    """  # noqa: E501
    wanted = options.as_asked() | given(start=start)

    async def work(bus: Bus) -> MailRow:
        async with making(bus, topic):
            return await bus.mails.create(topic, name, server=server, sender=sender, to=tuple(to), **wanted)

    made = ask(context, work)
    output.tell(made, f"the mail outlet {name} of {topic} hands mails over to {made.server}")


@app.command()
def update(
    topic: Topic,
    name: Name,
    server: str | None = option("Another server; it needs the password again.", metavar="URL"),
    sender: str | None = option("Another address of the header From.", "--from-address", metavar="ADDRESS"),
    to: list[str] | None = option("Other recipients. Repeatable."),
    *,
    options: MailFlags,
    context: ContextName = None,
) -> None:
    """Change a mail outlet's options. From then on it reads the topic in your name.

    Examples:
      landbridge mail update alerts ops --digest-every 10m --digest-most 50
    """
    wanted = options.as_asked() | given(server=server, sender=sender, to=tuple(to) if to else None)
    if not wanted:
        raise typer.BadParameter("nothing to change: give an option")
    changed = ask(context, lambda bus: bus.mails.update(topic, name, **wanted))
    output.tell(changed, f"the mail outlet {name} of {topic} is changed")


def _row(found: Any) -> dict[str, Any]:
    options, match = found.options, found.options.match
    patterns = {} if match is None else {"key": match.key, **match.headers}
    digest = options.digest
    return output.fields(options) | output.fields(
        found,
        to=list(options.to),
        digest=None if digest is None else f"every {digest.every:g} s, or {digest.most} messages",
        match=" ".join(f"{key}={pattern}" for key, pattern in patterns.items() if pattern) or "everything",
    )


add_commands(app, "mail", "mails", LIST, SHOW, _row)
