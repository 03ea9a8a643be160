"""The operations of a terminal: everything that can be asked of it besides moving messages, in one table.

Each entry has a name, a request and an answer as structs, the scope that a token needs, a verb and a path for
HTTP, and a sentence of help. The terminal dispatches by this table, the client's typed methods are made from
it, and so is the reference in docs. To add an operation, add an entry to the file of its noun and a handler
in the terminal. ``operation`` says what an entry is, ``common`` has what several nouns share.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. A request refuses unknown fields. An
answer may gain fields, which older clients ignore.
"""

from __future__ import annotations

# In the order of the table.
# isort: off
from landbridge.protocol.operations.operation import *
from landbridge.protocol.operations.common import *
from landbridge.protocol.operations.topics import *
from landbridge.protocol.operations.event_types import *
from landbridge.protocol.operations.groups import *
from landbridge.protocol.operations.letters import *
from landbridge.protocol.operations.tokens import *
from landbridge.protocol.operations.services import *
from landbridge.protocol.operations.terminal import *
from landbridge.protocol.operations.stages import *
from landbridge.protocol.operations.messages import *
from landbridge.protocol.operations.network import *
from landbridge.protocol.operations.documents import *
from landbridge.protocol.operations.schedules import *
from landbridge.protocol.operations.outlets import *
from landbridge.protocol.operations.webhooks import *
from landbridge.protocol.operations.mail import *
from landbridge.protocol.operations.sms import *
from landbridge.protocol.operations.websub import *
from landbridge.protocol.operations.events import *
from landbridge.protocol.operations.limits import *
from landbridge.protocol.operations.audit import *
from landbridge.protocol.operations.rules import *
from landbridge.protocol.operations.nodes import *
