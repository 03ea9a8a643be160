"""``landbridge console``: the pages of a terminal, in a browser."""

from __future__ import annotations

import msgspec

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName, flag, option
from landbridge.errors import BadRequest, TerminalUnreachable

#: Seconds for the answer of the HTTP port.
ANSWER_WITHIN = 15.0


class ConsoleLink(msgspec.Struct, frozen=True):
    """A link that signs in, once. Printed as JSON."""

    url: str
    #: Seconds in which it can be used.
    within: float


def console(
    show: bool = flag("Print the link instead of opening a browser.", "--print"),
    url: str | None = option(
        "Where the terminal's HTTP port is, seen from here.",
        "--url",
        metavar="URL",
        default="what the terminal says",
    ),
    context: ContextName = None,
) -> None:
    """Open the console in a browser, by a link that signs in once with the rights of the context's token.

    Examples:
      landbridge console
      landbridge console --print
      landbridge console --context paris --url https://paris.example.com:7480
    """
    from landbridge.client.context import resolve

    base = url or ask(context, lambda bus: bus.terminal.info()).http
    if not base:
        raise BadRequest("the terminal has no HTTP port, and so no console", hint="start it with --http-port")
    known = resolve(None, None, context, None)
    link = _link(base.rstrip("/"), known.token, known.ca)
    output.emit(link, lambda link: _show(link) if show else _open(link))


def _link(base: str, token: str, ca: str | None) -> ConsoleLink:
    """Trade the token for a link."""
    import httpx

    if not base.startswith(("http://", "https://")):
        raise BadRequest(f"--url {base}", hint="https://HOST:PORT")
    try:
        answer = httpx.post(
            f"{base}/console/links",
            headers={"authorization": f"Bearer {token}"},
            verify=ca or True,
            # A proxy that the environment names is for the internet, not for this machine.
            trust_env=base.startswith("https:"),
            timeout=ANSWER_WITHIN,
        )
        said = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise TerminalUnreachable(f"no console at {base}: {error}", hint="is this its HTTP port?") from None
    if answer.status_code != 201:
        detail = said.get("detail", f"status {answer.status_code}")
        raise TerminalUnreachable(f"no link from {base}: {detail}", hint=said.get("hint", ""))
    return ConsoleLink(base + said["path"], said["within"])


def _show(link: ConsoleLink) -> None:
    print(link.url)


def _open(link: ConsoleLink) -> None:
    import webbrowser

    if webbrowser.open(link.url):
        output.done("the console is open in the browser")
    else:  # on a server, mostly
        output.note("there is no browser here: open this link in one, it works once")
        _show(link)
