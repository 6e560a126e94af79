"""Flower's SuperNode and SuperExec, launched so that a round does not wait for them.

Flower's own processes start a new one for every message and look for work every second or three.
The launcher keeps a process warm for each run and forks a child of it for each message, and looks
for work the more often the sooner it is expected. It is an option: what is computed is the same.
"""
