"""Middleware: what is done with the messages of a topic before they are stored, and before they are
delivered.

Reading order: ``spec`` (the settings of a chain), ``rows`` (the messages on their way through it), a file for
each stage (``authorise``, ``redact``, ``validate``), then ``event_types``, ``schema``, ``weight`` and
``compatibility``.
``compress`` is in ``core/log/packing.py``, because the log stores what it makes; ``transform`` is the users'
own and runs in the broker.
"""
