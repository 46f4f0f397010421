"""What pytest does not collect: examples that need PyTorch, where it is not installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("torch") else ["stellaris/torch.py", "stellaris/_core/autograd.py"]
