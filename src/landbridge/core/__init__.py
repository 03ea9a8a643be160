"""Decisions without I/O.

Nothing here opens a file, reads a clock, draws a random number or waits: ``now`` (microseconds since 1970)
and ids are passed in, effects are returned. So every rule of the bus can be tested without a loop, a mock
or a sleep, and the terminal and Spark run the same code.
"""
