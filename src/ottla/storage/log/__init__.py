"""One partition's log (Kafka's UnifiedLog): segments, indexes, producer state, leader epochs, recovery, retention."""
