"""The Flower backend: users reached through a grid of nodes, one partial sum a node.

`records` and `messages` turn trees and work into Flower records, without pickle; `registry` learns
which node hosts which users; `exchange` keeps a window of messages in flight; `strategy` adds what
comes back, trusting none of it; `client` answers on the nodes.
"""
