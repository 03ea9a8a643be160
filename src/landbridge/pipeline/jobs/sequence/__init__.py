"""What has numbers, in their order: the core's sequencer and exchange as Spark's state."""
