"""Content rules: which messages a query chooses, without I/O. ``query`` is the document, ``ruleset`` matches
batches against many of them at once, and ``explanation`` says why one rule does or doesn't match one message.

Reading order: ``query``, ``content`` (what of a message a rule sees), ``budget``, ``pattern`` (kind
``partial``), ``regexps``, ``jsonpath``, ``fields`` (the index of the partial rules), ``ruleset``,
``explanation``. The semantics are in docs/rules.md, and the reasons in ADR 31.
"""
