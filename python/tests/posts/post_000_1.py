import tensorflow as tf

x = tf.Variable(tf.random.normal([1000, 1000]))
y = tf.Variable(tf.random.normal([1000, 1000]))

with tf.GradientTape() as tape:
    z = tf.matmul(x, y)
    loss = tf.reduce_sum(z)

gradients = tape.gradient(loss, [x, y])

# Large intermediate tensor 'z' is implicitly watched, consuming substantial memory.
