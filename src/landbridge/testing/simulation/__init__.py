"""The fault simulator: terminals of one customer in one process, on virtual time, and everything that can go
wrong with them. One seed decides all of it, so a seed goes the same way each time.

    story = simulate(7, Scenario(terminals=12))          what happened, and which promises were broken

Reading order: ``chronicle`` (the promises), ``world`` with ``wires``, ``office`` and ``disk`` (what is made
up around the terminals, which are the real ones), ``trouble`` (the faults), ``seeds`` (one seed). ``scene``
is a world for one test.
"""
