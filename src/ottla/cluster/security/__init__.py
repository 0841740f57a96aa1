"""ACLs, SCRAM credentials, delegation tokens and client quotas in the metadata; `ottla.security` decides with them."""
