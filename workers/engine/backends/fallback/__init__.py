"""The general way: any model that transformers can generate with, one sequence at a time."""
