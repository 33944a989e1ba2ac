"""From tags to concepts: vectors, clusters, selection, cards (§4.2.2)."""
