"""The engine that both platforms share: the life of a call, its container, its place and its time."""
