"""The bodies of the APIs that clients speak, read natively: no translation from one to another (floor 1). Pure."""
