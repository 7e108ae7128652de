"""Files, as `tf.io.gfile` has them: the public namespace `aioflow.io.gfile`.

`aioflow.gfile` has the same functions under TensorFlow 1's older names. They block, like `open`.
"""

from aioflow.formats.gfile import GFile as GFile
from aioflow.formats.gfile import copy as copy
from aioflow.formats.gfile import exists as exists
from aioflow.formats.gfile import glob as glob
from aioflow.formats.gfile import isdir as isdir
from aioflow.formats.gfile import join as join
from aioflow.formats.gfile import listdir as listdir
from aioflow.formats.gfile import makedirs as makedirs
from aioflow.formats.gfile import mkdir as mkdir
from aioflow.formats.gfile import remove as remove
from aioflow.formats.gfile import rename as rename
from aioflow.formats.gfile import rmtree as rmtree
from aioflow.formats.gfile import stat as stat
from aioflow.formats.gfile import walk as walk
from aioflow.loading.later import load_later as _load_later

__all__ = [
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]

_load_later(__name__)
