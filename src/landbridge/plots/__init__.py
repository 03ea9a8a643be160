"""Pictures as SVG, made from data without I/O: for reports, the command line and the console."""
