"""A terminal's file, ``landbridge.yml``: who it is, where its registry is, how it listens.

    terminal:
      customer_id: cus_…
      terminal_id: ter_…
      secure_key: lbsk1_…        or @FILE, where the key is kept apart
      registry: https://registry.example

Every key can also be given as LANDBRIDGE_TERMINAL_KEY and as a flag; flags win over the environment, which
wins over the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from landbridge.core.sizes import parse_size
from landbridge.core.time import parse_span
from landbridge.errors import BadRequest

#: Of environment variables.
PREFIX = "LANDBRIDGE_TERMINAL_"
DEFAULT_FILE = "landbridge.yml"
DEFAULT_LISTEN = "127.0.0.1:7420"


def _text(value: Any) -> str:
    if isinstance(value, (list, dict, bool)):
        raise ValueError("it is a text")
    return str(value)


def _mode(value: Any) -> str:
    if value not in ("server", "client"):
        raise ValueError("it is server or client")
    return str(value)


def _flag(value: Any) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    found = known.get(str(value).lower())
    if found is None:
        raise ValueError("it is true or false")
    return found


def _port(value: Any) -> int:
    text = str(value)
    if not text.isascii() or not text.isdecimal() or int(text) > 65535:
        raise ValueError("it is a number from 0 to 65535")
    return int(text)


def _names(value: Any) -> list[str]:
    """A list, or a text with commas. None of them is a choice too: to dial nobody."""
    if isinstance(value, str):
        return [name for part in value.split(",") if (name := part.strip())]
    if not isinstance(value, list):
        raise ValueError("it is a list of names")
    return [_text(name) for name in value]


def _pairs(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {_text(name): _text(said) for name, said in value.items()}
    found: dict[str, str] = {}
    for part in _names(value):
        name, equals, said = part.partition("=")
        if not name or not equals:
            raise ValueError("it is of the form name=value")
        found[name] = said
    return found


def _span(value: Any) -> float:
    return parse_span(str(value))


def _size(value: Any) -> int:
    return parse_size(str(value))


class Setting(NamedTuple):
    """One setting: in the file, in the environment and on the command line."""

    #: From YAML, or from a text. Raises ValueError.
    read: Callable[[Any], Any]
    help: str
    #: What the command line shows in the place of the value.
    metavar: str | None = None
    #: What holds where nothing is set, for people.
    default: str | None = None


KEYS: dict[str, Setting] = {
    "customer_id": Setting(_text, "Its customer.", "ID"),
    "terminal_id": Setting(_text, "Its own id.", "ID"),
    "secure_key": Setting(_text, "A file with its secret, or the secret itself.", "@FILE"),
    "name": Setting(_text, "What it calls itself."),
    "mode": Setting(_mode, "What it should be.", "server|client"),
    "address": Setting(_text, "Where others should dial it, lbs://host:port.", "URL"),
    "listen": Setting(_text, "Where it listens.", "HOST:PORT", DEFAULT_LISTEN),
    "http_port": Setting(_port, "For messages and metrics; 0 for none.", "PORT", "7480"),
    "registry": Setting(_text, "Its registry.", "URL"),
    "registry_key": Setting(_text, "The registry's public key, base64.", "KEY"),
    "store": Setting(
        _text, "Where its messages are, if on a server: redis://… or postgresql://….", "URL|@FILE"
    ),
    "node": Setting(_text, "Be one of several nodes of the terminal, which share its store.", "NAME"),
    "node_address": Setting(_text, "Where others reach this node.", "URL", "where it listens"),
    "node_life": Setting(_span, "Without a sign of life, a node counts as gone after it.", "SPAN", "3s"),
    "together": Setting(_flag, "Keep all units at one node, and the others ready.", "true|false"),
    "registry_ca": Setting(_text, "Certificates to trust for the registry.", "FILE"),
    "data": Setting(_text, "Where its data is kept.", "FOLDER"),
    "context": Setting(_text, "The context to make for it.", "NAME", "its name"),
    "tls_cert": Setting(_text, "Certificate chain of your own, PEM.", "FILE"),
    "tls_key": Setting(_text, "Its private key, PEM.", "FILE"),
    "tls_ca": Setting(_text, "Certificates to trust for links and other nodes, too.", "FILE"),
    "auto_create": Setting(_flag, "Make topics when they are first used.", "true|false"),
    "limits": Setting(_pairs, "Limits, as --limit of 'up'.", "NAME=VALUE,…"),
    "allow_outgoing": Setting(_names, "Callbacks, webhooks, mail … may go there, too.", "NETWORK,…"),
    "smtp": Setting(_port, "Takes mails, with STARTTLS if it has a certificate.", "PORT"),
    "smtps": Setting(_port, "Takes mails with TLS from the start.", "PORT"),
    "smtp_domain": Setting(_text, "Mails to TOPIC@DOMAIN are messages.", "DOMAIN", "localhost"),
    # crossing.network.Settings
    "region": Setting(_text, "Prefer servers of this region."),
    "neighbours": Setting(_names, "Dial these servers and no others.", "NAME,…"),
    "dial": Setting(_pairs, "Dial a server at another address.", "NAME=URL,…"),
    "probe_busy": Setting(_span, "Between probes of a busy link.", "SPAN", "2s"),
    "probe_idle": Setting(_span, "Between probes of an idle one.", "SPAN", "10s"),
    "max_transit": Setting(_size, "Kept for other terminals.", "SIZE", "4GiB"),
    "max_sealed": Setting(_size, "Kept until it can be opened.", "SIZE", "4GiB"),
    "catch_up_rate": Setting(_size, "A second, after an outage; 0: no limit.", "SIZE", "32MiB"),
    "own_certificates": Setting(_flag, "Links use certificates that were given.", "true|false"),
    "log_links": Setting(_flag, "Write link states to $links, for 'pipeline run routes'.", "true|false"),
}
#: Those whose values are files: relative ones in a file are meant from where that file is.
PATHS = ("registry_ca", "data", "tls_cert", "tls_key", "tls_ca")


def read(file: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, by key. What isn't, isn't there."""
    found = {} if file is None else _read_file(file)
    for name, text in environment.items():
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX).lower()
            _check_known([key], f"the environment ({name})")
            found[key] = _value(key, text, name)
    found |= {key: _value(key, value, f"--{key.replace('_', '-')}") for key, value in flags.items()}
    secret = found.get("secure_key", "")
    if secret.startswith("@"):
        found["secure_key"] = _read_text(Path(secret[1:]))
    return found


def _read_file(file: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(_read_text(file))
    except yaml.YAMLError as error:
        raise BadRequest(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    settings = document.get("terminal") if isinstance(document, dict) else None
    if not isinstance(settings, dict) or set(document) != {"terminal"}:
        raise BadRequest(
            f"{file} has to have one key at its top, 'terminal'",
            hint="'landbridge terminal create NAME --write FILE' writes one",
        )
    _check_known(settings, str(file))
    found = {
        key: _value(key, value, f"{file}: {key}") for key, value in settings.items() if value is not None
    }
    for key in PATHS:
        if found.get(key):
            found[key] = str(file.parent / Path(found[key]).expanduser())
    secret = found.get("secure_key", "")
    if secret.startswith("@"):
        found["secure_key"] = f"@{file.parent / Path(secret[1:]).expanduser()}"
    return found


def _check_known(keys: Any, where: str) -> None:
    unknown = [str(key) for key in keys if key not in KEYS]
    if unknown:
        raise BadRequest(
            f"{where} has keys that aren't known: {', '.join(unknown)[:200]}",
            hint=f"the known ones are {', '.join(KEYS)}",
        )


def _value(key: str, value: Any, where: str) -> Any:
    try:
        return KEYS[key].read(value)
    except ValueError as error:
        # A secret that was put under the wrong key is not repeated.
        raise BadRequest(f"{where} can't be used: {error}") from None


def _read_text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        raise BadRequest(
            f"there is no file {file}", hint="'landbridge terminal create NAME --write FILE' writes one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"can't read {file}: {getattr(error, 'strerror', None) or error}") from None


def create(file: Path) -> None:
    """An empty one that only its owner can read, before there is a secret to write. BadRequest if there is
    one: a secure key is never overwritten."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise BadRequest(f"there is a file {file} already", hint="choose another, or remove it") from None
    except OSError as error:
        raise BadRequest(f"can't write {file}: {error.strerror}") from None


@contextmanager
def created(file: Path | None) -> Iterator[None]:
    """The file, as ``create`` makes it, while the secret for it is obtained; removed where that fails. None:
    no file is wanted."""
    if file is None:
        yield
        return
    create(file)
    try:
        yield
    except BaseException:
        file.unlink()
        raise


def write(file: Path, settings: Mapping[str, Any]) -> None:
    """Into a file that ``create`` has made."""
    import yaml

    said = {key: value for key, value in settings.items() if value not in (None, "")}
    text = yaml.safe_dump({"terminal": said}, sort_keys=False, allow_unicode=True)
    file.write_text(f"# A terminal of Landbridge: landbridge terminal --config {file.name}\n{text}")


def endpoint(listen: str) -> tuple[str, int]:
    """(host, port) of host:port, [v6]:port or a port alone."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        if (colon and not bare) or (":" in bare and not host.startswith("[")):
            raise ValueError
        return bare or "127.0.0.1", _port(port)
    except ValueError:
        raise BadRequest(
            f"{listen!r} is not where a terminal can listen", hint="127.0.0.1:7420, 0.0.0.0:7420, [::]:7420"
        ) from None
