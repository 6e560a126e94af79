"""Modules behind the names of `import fedpriv`, each loaded when a name of it is first used."""
