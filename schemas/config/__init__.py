"""The run's config: `config` puts the sections together, `file` reads and checks it, `base` has the marks of keys.

Every other module holds the sections of one subject. A key is a field with a docstring; docs/configuration.md is made of them.
Imports nothing heavy: the config check runs before anything else does.
"""
