"""The headers by which a stored message asks for a reply, and by which a stored reply says what it answers.

An event has an id. The message that carries it names the terminal that waits for the outcome and the id; the
reply is a message of the topic ``$replies`` whose key is that terminal.
"""

from __future__ import annotations

#: The topic of replies. Each terminal writes to its own what consumers reply, and reads there what has come
#: for the events that were triggered here.
TOPIC = "$replies"

#: Of the message: the terminal that gets the reply, the event's id, and when nobody wants it any more
#: (microseconds since 1970).
REPLY_TO, CORRELATION, DEADLINE = "lb-reply-to", "lb-correlation", "lb-deadline"
#: Of the reply, beside the correlation: the subject that replied; and of a failure its code and status.
SOURCE, CODE, STATUS = "lb-source", "lb-code", "lb-status"
