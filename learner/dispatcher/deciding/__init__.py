"""What follows from an event: `Dispatcher` and its deciders.

Pure; imports neither Kafka nor a clock nor anything of `serving/`.
"""
