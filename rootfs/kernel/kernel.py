"""Start of the kernel layer: hands over to brig_kernel.

The interpreter is started with -I, so the folder of this file is not on sys.path; it is there only for the import, as
code of users must not find our modules before its own.
"""

import sys

sys.path.insert(0, __file__.rpartition("/")[0])
from brig_kernel import run  # noqa: E402  (the path has to be there first)

del sys.path[0]
run(3, 4)
