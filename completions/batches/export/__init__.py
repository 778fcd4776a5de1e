"""The results of an ended batch as rows of typed columns, in Parquet or PostgreSQL."""
