"""The Spark data source ``format("landbridge")``: topics are read and written as tables."""
