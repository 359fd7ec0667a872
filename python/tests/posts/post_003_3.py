import tensorflow as tf

# ... model definition ...

mixed_precision = tf.keras.mixed_precision.experimental.Policy('mixed_float16')
tf.keras.mixed_precision.experimental.set_policy(mixed_precision)

# ... training loop ...
