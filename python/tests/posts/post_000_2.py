import tensorflow as tf

x = tf.Variable(tf.random.normal([1000, 1000]))
y = tf.Variable(tf.random.normal([1000, 1000]))

with tf.GradientTape() as tape:
    tape.watch(x) # Explicitly watch x
    tape.watch(y) # Explicitly watch y
    z = tf.matmul(x, y)
    loss = tf.reduce_sum(z)

gradients = tape.gradient(loss, [x, y])

# Only x, y, and their direct dependencies are tracked; 'z' is garbage collected efficiently.
