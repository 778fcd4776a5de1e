"""Pages of the admin that act as a client of the API: playground and results of batches."""
