"""What is kept: topics as Parquet files by day, and the commit records that say which of them count."""
