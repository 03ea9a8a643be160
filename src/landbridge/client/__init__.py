"""The client: needs msgspec, and uvloop where there is one, nothing else of the bus.

``bus`` is the connection that mends itself, ``publisher`` and ``subscription`` its two sides, ``service`` the
runner of decorated handlers, ``sync`` the same without async.
"""
