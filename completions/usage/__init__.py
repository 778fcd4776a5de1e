"""Usage: the ledger, reports, budgets and latency histograms."""
