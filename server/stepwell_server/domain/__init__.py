"""The rules, pure: frozen dataclasses and functions without I/O, clock, SQL or protobuf."""
