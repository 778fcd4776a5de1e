"""Files become a model that is proven to compute what transformers does."""
