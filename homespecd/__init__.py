"""homespecd: serve ONNX language models on a home server, faster and exactly."""

__version__ = "0.1.0"
