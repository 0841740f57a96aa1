"""Commands on access control: `ottla acl`, `quota`, `user`."""
