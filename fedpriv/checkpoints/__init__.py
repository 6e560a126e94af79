"""Released models on disk, and what can be made of several of them.

Everything here is post-processing: it reads what a round released and never sees a user.
"""
