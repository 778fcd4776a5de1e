"""Files become a model that is checked to compute what transformers does."""
