"""What was used: the ledger, reports, budgets and latency histograms."""
