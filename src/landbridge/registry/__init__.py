"""The registry: who exists, who may talk to whom, and under which keys.

Everything that it knows is in memory and, before anybody hears of it, in a store of its own. ``registry``
ties the parts together, ``entities`` are what it stores, ``http`` is its only door.
"""
