"""The handlers of all APIs, one file per API named by its key; `shared/` has code that several of them use."""
