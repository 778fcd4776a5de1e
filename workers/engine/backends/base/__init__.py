"""What all backends share: layers of the cache, paged models, adapters, records, memory."""
