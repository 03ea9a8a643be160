"""``landbridge sms``: messages of a topic that are sent as SMS."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import making
from landbridge.cli.options import START, Commands, ContextName, Topic, given, option, start_of
from landbridge.cli.outlets import Name, OutletFlags, add_commands, read_secret
from landbridge.cli.output import columns
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.core.sms.spec import SmsProfile
    from landbridge.protocol.operations import SmsRow

app = Commands(no_args_is_help=True, help="SMS outlets: messages of a topic that are sent as SMS.")

LIST = columns(
    "Topic@cyan | SMS=name@cyan | Account | State | Circuit | Lag:count@yellow | Delivered:count | "
    "Failed:count@red | Buried:count@red | Today:count | This month=this_month:count | "
    "Trouble@red"
)
SHOW = columns(
    "Account | From=sender | To | Body | Provider | Segments today=today | This month=this_month | "
    "Per day=per_day | Per month=per_month | Receipts | Receipts at=receipts_url | Incoming | "
    "Incoming at=incoming_url | State | Circuit | Owner | Group | Lag:count@yellow | Delivered:count | "
    "Failed:count@red | Buried:count@red | Last success=last_success_at:moment | "
    "Failing since=failing_since:moment | Blocked until=blocked_until:moment | Disabled=disabled_why@red | "
    "Trouble@red | Ordered | Rate | Match | Paused=paused_at:moment | Paused by | Note"
)


class SmsFlags(OutletFlags):
    """The options of an SMS outlet."""

    body: str | None = option("Template of the text.", metavar="TEMPLATE", default="{{ payload }}")
    profile: Path | None = option(
        "How the provider is asked: a JSON file, see docs/sms.md.", metavar="FILE", default="Twilio's"
    )
    per_day: int | None = option("Segments of a day (UTC) at most; 0 for no limit.", min=0, default="0")
    per_month: int | None = option("Segments of a month (UTC) at most; 0 for no limit.", min=0, default="0")
    most_segments: int | None = option("Segments of one SMS; a longer one is given up.", default="10")
    receipts: str | None = option("Topic of delivery receipts.", metavar="TOPIC", default="none are taken")
    incoming: str | None = option("Topic of SMS that come in.", metavar="TOPIC", default="none are taken")
    reached_at: str | None = option(
        "How the provider reaches the HTTP port, e.g. https://bus.example", metavar="URL"
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        options = super().as_asked()
        options |= self.given("body", "most_segments", "receipts", "incoming", "reached_at")
        for name in ("per_day", "per_month"):
            if (most := getattr(self, name)) is not None:
                options[name] = most or None
        return options | given(profile=_read_profile(self.profile))


def _read_profile(file: Path | None) -> SmsProfile | None:
    import msgspec

    from landbridge.core.options import read_options
    from landbridge.core.sms.spec import SmsProfile

    if file is None:
        return None
    try:
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise BadRequest(f"can't read the profile: {error}") from None
    return read_options(found, SmsProfile, "profile")


@app.command()
def create(
    topic: Topic,
    name: Name,
    account: str = option("Who shows itself to the provider.", value=...),
    secret_file: Path = option(
        "What the account shows to the provider: the first line of a file, or '-' for standard input.",
        metavar="FILE",
        value=...,
    ),
    sender: str = option(
        "The number or the name that the SMS come from.", "--from-number", metavar="NUMBER", value=...
    ),
    to: str = option("The recipient: a number, or a template of one.", metavar="TEMPLATE", value=...),
    *,
    options: SmsFlags,
    start: str | None = start_of(START, "latest"),
    context: ContextName = None,
) -> None:
    """Create an SMS outlet. It reads the topic in your name, so you need the scope subscribe:TOPIC. In
    templates, {{ payload.NAME }} is a value of the message.

    Examples:
      landbridge sms create alerts oncall --account AC123 --secret-file token --from-number +15550000001 --to +15550000002 --per-day 100
      landbridge sms create alerts own --account AC123 --secret-file token --from-number +15550000001 --to '{{ payload.phone }}' --body '{{ payload.text }}'
    """  # noqa: E501
    wanted = options.as_asked() | given(start=start)
    secret = read_secret(secret_file, "secret") or ""

    async def work(bus: Bus) -> SmsRow:
        async with making(bus, topic):
            return await bus.sms.create(
                topic, name, account=account, secret=secret, sender=sender, to=to, **wanted
            )

    made = ask(context, work)
    output.tell(made, f"the SMS outlet {name} of {topic} sends as {sender}")


@app.command()
def update(
    topic: Topic,
    name: Name,
    account: str | None = option("Another account; it needs its secret."),
    secret_file: Path | None = option(
        "Another secret: the first line of a file, or '-' for standard input.", metavar="FILE"
    ),
    sender: str | None = option(
        "Another number or name that the SMS come from.", "--from-number", metavar="NUMBER"
    ),
    to: str | None = option("Another recipient.", metavar="TEMPLATE"),
    *,
    options: SmsFlags,
    context: ContextName = None,
) -> None:
    """Change an SMS outlet's options. From then on it reads the topic in your name.

    Examples:
      landbridge sms update alerts oncall --per-day 200 --rate 1
    """
    wanted = options.as_asked() | given(
        account=account, secret=read_secret(secret_file, "secret"), sender=sender, to=to
    )
    if not wanted:
        raise typer.BadParameter("nothing to change: give an option")
    changed = ask(context, lambda bus: bus.sms.update(topic, name, **wanted))
    output.tell(changed, f"the SMS outlet {name} of {topic} is changed")


def _row(found: Any) -> dict[str, Any]:
    options, match = found.options, found.options.match
    patterns = {} if match is None else {"key": match.key, **match.headers}
    return output.fields(options) | output.fields(
        found,
        provider=options.profile.url,
        match=" ".join(f"{key}={pattern}" for key, pattern in patterns.items() if pattern) or "everything",
    )


add_commands(app, "sms", "sms", LIST, SHOW, _row)
