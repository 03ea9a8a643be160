"""``landbridge service``: who may use the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import completion, output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, OptionGroup, argument, flag, option, pairs, span
from landbridge.cli.output import columns
from landbridge.cli.pausing import and_paused, told, with_pause
from landbridge.cli.saving import place_for, save
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.client.context import Context
    from landbridge.protocol.operations import ServiceDetails, ServiceStats, ServiceToken

app = Commands(
    no_args_is_help=True,
    help="Services: the programs that may use the bus, each with a credential and scopes.",
)

LIST = columns(
    "Service=name@cyan | State | Version | Owner | Scopes | Connections:count | Seen=seen_at:moment | Health"
)
SHOW = columns(
    "State | Note | Version | Owner | Description | Scopes | Publishes | Subscribes | "
    "Health URL=health_url | Connections:count | Seen=seen_at:moment | Health | "
    "Registered=registered_at:moment | Changed=changed_at:moment | Paused@yellow"
)
ENDPOINTS = columns("Endpoint=name@cyan | Topic | Reply=reply | Description")
CREDENTIALS = columns("Credential made=made_at:moment | Ends=ends_at:moment")
INSTANCES = columns("Instance@cyan | Health | Detail@yellow | Since=started_at:moment | Seen=seen_at:moment")
STATS = columns(
    "Endpoint=name@cyan | Requests:count | Errors:count@red | In all=processing:span | P50=p50:span | "
    "P99=p99:span | Last error@red"
)

ServiceName = Annotated[
    str, argument("SERVICE", "The service's name.", autocompletion=completion.service_names)
]


class DescriptionFlags(OptionGroup):
    """What is said of a service."""

    scope: list[str] | None = option(
        "What it may do: publish:PATTERN, subscribe:PATTERN, documents:PATTERN, observe, operate or admin. "
        "Repeatable.",
        metavar="SCOPE",
    )
    version: str | None = option(
        "Its version, three numbers as in 1.4.0.", metavar="VERSION", default="0.0.0"
    )
    owner: str | None = option("Who answers for it.", metavar="NAME")
    description: str | None = option("What it is for.", metavar="TEXT")
    publishes: list[str] | None = option(
        "A topic that it publishes, for readers. Repeatable.", metavar="TOPIC"
    )
    subscribes: list[str] | None = option("A topic that it reads, for readers. Repeatable.", metavar="TOPIC")
    health_url: str | None = option("An address that answers 2xx while it is well.", metavar="URL")
    metadata: list[str] | None = option("Anything else. Repeatable.", metavar="NAME=VALUE")

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as service.register takes them."""
        options = self.given("version", "owner", "description", "publishes", "subscribes")
        named = {"scopes": self.scope, "health": self.health_url}
        options |= {name: value for name, value in named.items() if value is not None}
        if self.metadata is not None:
            options["metadata"] = pairs(self.metadata, "metadata")
        return options


SaveAs = Annotated[
    str | None, option("Write the credential into a context of this name, unseen.", metavar="CONTEXT")
]


@app.command()
def register(
    name: ServiceName,
    *,
    description: DescriptionFlags,
    no_credential: bool = flag(
        "Make no credential: the service gets its tokens otherwise.", "--no-credential"
    ),
    save_as: SaveAs = None,
    context: ContextName = None,
) -> None:
    """Register a service. Its credential is shown once; on a pipe, the credential alone is printed.

    Registering one that is there with the same options changes nothing.

    Examples:
      landbridge service register shop --scope 'publish:orders.#' --owner sales
      landbridge service register billing --scope subscribe:orders --save-as billing
    """
    place = place_for(save_as, context)
    options = description.as_asked()
    made = ask(context, lambda bus: bus.services.register(name, credential=not no_credential, **options))
    if made.credential is None and no_credential:
        output.tell(made, f"the service {name} is there")
    elif made.credential is None:
        # On stderr: what is printed is taken for the credential.
        output.emit(made, lambda _: output.notice(f"the service {name} is there; {_ANOTHER.format(name)}"))
    else:
        _give(made, name, made.credential, save_as, place)


_ANOTHER = "its credential was shown once, and 'landbridge service rotate {}' makes another"


def _give(answer: Any, name: str, credential: str, save_as: str | None, place: Context | None) -> None:
    if save_as is None or place is None:
        output.emit(answer, lambda _: _show_credential(name, credential))
        return
    save(save_as, place, credential)
    shown = output.fields(answer, context=save_as)
    del shown["credential"]
    output.tell(shown, f"the context {save_as} acts as {name}")


def _show_credential(name: str, credential: str) -> None:
    print(credential)
    output.note(f"the credential of {name}, which is shown only now; for connect(token=…) and service token")


@app.command("list")
def list_services(context: ContextName = None) -> None:
    """List the registered services.

    Examples:
      landbridge service list
    """
    rows = ask(context, lambda bus: bus.services.list())
    empty = "no services: 'landbridge service register' makes one"
    output.rows(
        and_paused(LIST, rows),
        rows,
        empty=empty,
        show=lambda row: with_pause(row) | {"scopes": " ".join(row.scopes)},
    )


@app.command()
def show(name: ServiceName, context: ContextName = None) -> None:
    """Show a service: what it is, what it may do, and whether it is there.

    Examples:
      landbridge service show shop
    """
    output.emit(ask(context, lambda bus: bus.services.show(name)), _show)


def _show(found: ServiceDetails) -> None:
    options = output.fields(found.options)
    row = output.fields(
        found,
        version=found.options.version,
        owner=found.options.owner,
        description=found.options.description,
        scopes=" ".join(found.options.scopes),
        publishes=" ".join(found.options.publishes),
        subscribes=" ".join(found.options.subscribes),
        health_url=found.options.health,
        paused=told(found.pause),
    )
    output.record(found.name, SHOW, row)
    print()
    if options["endpoints"]:
        output.table(ENDPOINTS, options["endpoints"], empty="")
        print()
    output.table(CREDENTIALS, [output.fields(each) for each in found.credentials], empty="no credential")


@app.command()
def update(name: ServiceName, *, description: DescriptionFlags, context: ContextName = None) -> None:
    """Change what is registered of a service. What isn't given stays; tokens above its scopes end.

    Examples:
      landbridge service update shop --version 1.5.0 --scope 'publish:orders.#' --scope subscribe:prices
    """
    options = description.as_asked()
    output.tell(
        ask(context, lambda bus: bus.services.update(name, **options)), f"the service {name} is changed"
    )


@app.command()
def suspend(
    name: ServiceName,
    note: str = option("Why, for whoever looks.", metavar="TEXT", value=""),
    context: ContextName = None,
) -> None:
    """Refuse a service's credential and tokens until it is resumed. Its connections end at once.

    Examples:
      landbridge service suspend shop --note 'floods orders'
    """
    answer = ask(context, lambda bus: bus.services.suspend(name, note=note))
    output.tell(answer, f"the service {name} is suspended")


@app.command()
def resume(name: ServiceName, context: ContextName = None) -> None:
    """Let a suspended service in again.

    Examples:
      landbridge service resume shop
    """
    output.tell(ask(context, lambda bus: bus.services.resume(name)), f"the service {name} is active")


@app.command()
def pause(
    name: ServiceName,
    note: str = option("Why, for whoever looks.", metavar="TEXT", value=""),
    context: ContextName = None,
) -> None:
    """Give a service no messages and no requests until it is unpaused. It stays connected and may finish what
    it has; callers that nobody else can answer are told at once.

    Examples:
      landbridge service pause billing --note 'waiting for the new version'
    """
    answer = ask(context, lambda bus: bus.services.pause(name, note=note))
    output.tell(answer, f"the service {name} is paused")


@app.command()
def unpause(name: ServiceName, context: ContextName = None) -> None:
    """Give a paused service messages and requests again.

    Examples:
      landbridge service unpause billing
    """
    answer = ask(context, lambda bus: bus.services.unpause(name))
    output.tell(answer, f"the service {name} goes on")


@app.command()
def rotate(
    name: ServiceName,
    overlap: float = span("How long the credential before stays good.", value=0.0, default="0s"),
    save_as: SaveAs = None,
    context: ContextName = None,
) -> None:
    """Make another credential for a service. On a pipe, the credential alone is printed.

    Examples:
      landbridge service rotate shop --overlap 1h
    """
    place = place_for(save_as, context)
    made = ask(context, lambda bus: bus.services.rotate(name, overlap=overlap))
    _give(made, name, made.credential, save_as, place)


@app.command()
def remove(name: ServiceName, context: ContextName = None) -> None:
    """Remove a service. Its tokens stay refused, whoever gets the name.

    Examples:
      landbridge service remove shop
    """
    output.tell(ask(context, lambda bus: bus.services.remove(name)), f"the service {name} is removed")


@app.command()
def stats(name: ServiceName, context: ContextName = None) -> None:
    """Show what a service's endpoints have done, by its heartbeats.

    Examples:
      landbridge service stats shop
    """
    output.emit(ask(context, lambda bus: bus.services.stats(name)), _show_stats)


def _show_stats(found: ServiceStats) -> None:
    output.table(STATS, [output.fields(row) for row in found.endpoints], empty="no endpoints told of")
    output.table(INSTANCES, [output.fields(row) for row in found.instances], empty="no heartbeat lately")
    output.note(counted(found.connections, "connection"))


@app.command()
def token(
    name: ServiceName,
    credential: str | None = option(
        "Its credential. Better: LANDBRIDGE_CREDENTIAL, which no list of processes shows.",
        metavar="CREDENTIAL",
        envvar="LANDBRIDGE_CREDENTIAL",
    ),
    scope: list[str] | None = option("Only this of what it may do. Repeatable.", metavar="SCOPE"),
    context: ContextName = None,
) -> None:
    """Trade a service's credential for a token of ten minutes. On a pipe, the token alone is printed.

    Without a credential, that of the context is taken.

    Examples:
      landbridge service token billing --context billing
    """
    from landbridge.client.context import resolve

    shown = credential or resolve(context=context).token
    made = ask(context, lambda bus: bus.services.token(name, shown, scope))
    output.emit(made, _show_token)


def _show_token(made: ServiceToken) -> None:
    print(made.token)
    output.note(f"for {made.service} until {units.iso(made.expires_at)}: {' '.join(made.scopes)}")
