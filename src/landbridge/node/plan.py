"""What one process is asked to run, and what it tells when it runs. Imports quickly, for the commands."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from landbridge.core.cluster.roster import LIFE
from landbridge.core.store_address import StoreAddress as StoreAddress
from landbridge.errors import BadRequest

#: Seconds of a node's lease, at the least: a busy machine must not look like a lost one.
LEAST_LIFE = 1.0


def data_folder() -> Path:
    """Where ``landbridge up`` keeps its data unless it is told otherwise."""
    given = os.environ.get("LANDBRIDGE_DATA")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "landbridge"


def check_life(life: float) -> float:
    """The life of a node's lease, if that is long enough."""
    if life < LEAST_LIFE:
        raise BadRequest(f"a node's life is at least {LEAST_LIFE:g} s")
    return life


class EventsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An event gateway that is to run."""

    host: str = "127.0.0.1"
    event_port: int = 9090
    client_port: int = 9099
    #: None: nothing is stored.
    topic: str | None = None


class SmtpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Mails that are to be taken."""

    #: In the clear or with STARTTLS, and with TLS from the start; None: none, 0: any.
    port: int | None
    tls_port: int | None = None
    #: The part of addresses behind the @.
    domain: str = "localhost"


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a terminal is to run."""

    #: None: in memory.
    data: Path | None
    host: str
    port: int
    #: None: no HTTP.
    http_port: int | None
    name: str
    context: str
    limits: list[str]
    tls_cert: Path | None
    tls_key: Path | None
    auto_create: bool
    #: Networks and hosts that HTTP requests may go to, beside the public addresses.
    allow_outgoing: list[str] = []
    #: None: no event gateway.
    events: EventsPlan | None = None
    #: The port of MQTT, 0 for a free one; None: no MQTT.
    mqtt_port: int | None = None
    #: None: no mail is taken.
    smtp: SmtpPlan | None = None
    #: Where the data is, if on a server; None: in the folder, or in memory.
    store: StoreAddress | None = None
    #: Web sites whose pages may use the HTTP port.
    origins: list[str] = []
    #: Which of several nodes of one terminal it is; None: the terminal has this process alone.
    node: str | None = None
    #: Of a node: seconds after which it counts as gone if it isn't heard of.
    node_life: float = LIFE
    #: All units are to be at one node.
    together: bool = False
    #: Where others reach it, if not where it listens.
    address: str | None = None
    #: Certificates to trust for the other nodes; None: its own, if that has signed itself, else the system's.
    tls_ca: Path | None = None
    #: Make a link to the console, for a person who sees what the process prints.
    sign_in: bool = False
    #: Serve Socket.IO at the HTTP port.
    socketio: bool = False


class NodeReady(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the process runs, once it can be used. Commands print it as JSON."""

    url: str
    data: str | None
    context: str
    #: Is that context the current one?
    current: bool
    http: str | None
    name: str
    pid: int
    #: Where the registry of its customer is; None where it stands alone.
    registry: str | None = None
    #: Its own id there.
    terminal: str | None = None
    #: Where the store is, if on a server; without its password.
    store: str | None = None
    #: The event gateway's ports for the source and for clients; None where there is none.
    events: tuple[int, int] | None = None
    #: Its name among the nodes of its terminal; None where it is the only process.
    node: str | None = None
    #: A link that signs in to the console, once; None where the plan wants none. It is a secret.
    sign_in: str | None = None
    #: Where MQTT is served; None: nowhere.
    mqtt: str | None = None
    #: Where mails are taken, and for which domain; None: nowhere.
    smtp: str | None = None
