"""Records what TensorFlow does with the posts' programs: ``python tensorflow_posts.py > ../recorded/posts.json`` with ``pip install tensorflow``.

Each as it stands: what it prints, and what it raises.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import posts  # noqa: E402
import tensorflow as tf  # noqa: E402

if __name__ == "__main__":
    found = {name: posts.run(tf, name, "import tensorflow as tf") for name in posts.NAMES}
    print(json.dumps({"tensorflow": tf.__version__, "posts": found}, indent=1))
