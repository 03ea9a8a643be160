"""What runs on Spark: jobs that Landbridge brings, and steps that users write."""
