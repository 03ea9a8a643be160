"""The registry: who exists, who may talk to whom, and under which keys.

Everything that it knows is in memory and, before any answer tells of it, in a store of its own. Read in this
order: ``entities`` (what is stored), ``account`` (one customer in memory), ``change`` (one operation in the
making), ``state`` (how operations run), a noun such as ``terminals``, ``registry`` (which noun handles which
operation), ``http``.
"""
