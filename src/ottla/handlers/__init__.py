"""What each API does, one file per API, named by its key."""
