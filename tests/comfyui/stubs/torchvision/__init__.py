"""Stands in for torchvision."""

from absent import stand_in

__version__ = "0"
__getattr__ = stand_in(__name__, ["ops", "transforms", "transforms.functional", "models", "models.optical_flow"])
