"""The broker's side of the group and transaction coordinators: their environment, and loading and unloading."""
