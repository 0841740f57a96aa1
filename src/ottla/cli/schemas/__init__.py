"""Commands of the schema registry: `ottla registry`, `schema`, and the registry's values in `consume` and `produce`."""
