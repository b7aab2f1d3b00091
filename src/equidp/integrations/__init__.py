"""Trainers of other libraries whose steps are private ones of equidp.

What needs another library's training loop belongs here, one library a file. Each needs an extra. Models of
other libraries need nothing: they train as they are.
"""
