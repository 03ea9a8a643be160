"""What a log is: batches, the ranges and cursors over them, and the port to the disk that keeps them."""
