"""A customer with its terminals, a group and a topic, founded in a registry over HTTPS:
``python founding_process.py FILE``.

FILE: JSON of a Founding. Writes NAME.yml of each terminal beside it. Prints the ids of the customer and the
terminals, as JSON. A process of its own, because it has to be where the registry can be reached."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from landbridge.client.registry import RegistryClient
from landbridge.node import terminal_file


class Founding(msgspec.Struct, kw_only=True):
    registry: str
    #: A file with the certificates to trust.
    ca: str
    operator_token: str
    #: Name → the settings of its file, beside those of the registry. With an address it is a server.
    terminals: dict[str, dict[str, Any]]
    topic: str
    #: Group → the names of its terminals.
    groups: dict[str, list[str]]


async def main(file: Path) -> None:
    founding = msgspec.json.decode(file.read_bytes(), type=Founding)
    async with RegistryClient(founding.registry, token=founding.operator_token, ca=founding.ca) as operator:
        customer = await operator.create_message_bus_customer("acme")
    ids: dict[str, str] = {}
    async with RegistryClient(founding.registry, token=customer.token, ca=founding.ca) as admin:
        for name, settings in founding.terminals.items():
            address = settings.get("address", "")
            mode: Any = "server" if address else "client"
            made = await admin.create_terminal(name, mode=mode, address=address)
            ids[name] = made.terminal_id
            who = {"customer_id": made.customer_id, "terminal_id": made.terminal_id, "name": name}
            secret = {"secure_key": made.secure_key}
            key = base64.b64encode(made.registry_key).decode()
            where = {"registry": founding.registry, "registry_key": key, "registry_ca": founding.ca}
            written = file.parent / f"{name}.yml"
            terminal_file.create(written)
            terminal_file.write(written, {**who, **secret, **where, **settings})
        for group, members in founding.groups.items():
            await admin.create_terminal_group(group, [ids[name] for name in members])
        await admin.create_message_bus_topic(founding.topic, list(founding.groups))
    print(json.dumps({"customer": customer.customer_id, "terminals": ids}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
