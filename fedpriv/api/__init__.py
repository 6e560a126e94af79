"""What `import fedpriv` gives, room by room; `fedpriv` itself loads each name when it is used."""
