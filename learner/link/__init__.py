"""Rank 0 and its dispatcher process: the messages, the socket, rank 0's client.

Imports nothing of the dispatcher, the model or Kafka: both ends share it.
"""
