"""Authentication and authorization: SASL mechanisms, TLS contexts, ACL decisions, quotas.

SASL, ACLs and quotas do no I/O. `tls` and `stores` read files, `tokens` and `fetching` an issuer's keys over HTTP.
"""
