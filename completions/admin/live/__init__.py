"""Pages about the live state, one file per page: open jobs, models and engine workers."""
