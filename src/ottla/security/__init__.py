"""Who somebody is and what they may do: SASL mechanisms, TLS contexts, ACL decisions, quotas. No sockets in here."""
