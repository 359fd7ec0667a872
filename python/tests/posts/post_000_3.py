import tensorflow as tf

x = tf.Variable(tf.random.normal([1000, 1000]))
y = tf.Variable(tf.random.normal([1000, 1000]))
w = tf.Variable(tf.random.normal([1000, 1000]))

with tf.GradientTape() as tape:
    tape.watch(x)
    z1 = tf.matmul(x, y)
    z2 = tf.matmul(z1, w) # z1 is not watched directly, but is a dependency of z2 (which is implicitly watched)
    loss = tf.reduce_sum(z2)

gradients = tape.gradient(loss, [x, y, w])


# Illustrates that dependencies of watched variables are automatically tracked, but intermediate results further down the chain can still be garbage-collected if not directly needed for the final gradient calculation.

