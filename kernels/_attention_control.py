"""Where the fields of the control tensor lie (kernels/attention_control.py), for kernels. Imported only with Triton."""

import triton.language as tl

from . import attention_control as _control

LENGTH = tl.constexpr(_control.LENGTH)
ROWS = tl.constexpr(_control.ROWS)
MOVE = tl.constexpr(_control.MOVE)
DEPTHS = tl.constexpr(_control.DEPTHS)
OFFSETS = tl.constexpr(_control.OFFSETS)
