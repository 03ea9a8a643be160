"""Links and paths: measured costs, link states, the graph, the choice of a route."""
