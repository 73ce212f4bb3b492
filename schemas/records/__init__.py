"""Records of the topics: their schema, their bytes, and what makes one valid.

JSON records (`control`, `status`, `requests`, `metrics`, `quarantine`) are pydantic models over `json_record`; groups (`group`,
with `blobs` and `validity`) and seals (`seal`) are msgpack; `headers` are the ones that stock Kafka tools show. Every schema has
a number; docs/topics_and_records.md describes them. Imports neither Kafka nor torch.
"""
