import tensorflow as tf

# Define a simple computational graph
x = tf.Variable(tf.random.normal([1000, 1000]), name='x')
w = tf.Variable(tf.random.normal([1000, 1]), name='w')
y = tf.matmul(x, w)
loss = tf.reduce_mean(tf.square(y))

# Calculate gradients
gradients = tf.gradients(loss, [x, w])

# Session execution (for graph mode) or eager execution (if eager is enabled) to materialize the graph and calculate gradients.
# The memory consumption is significant due to intermediate tensor 'y' being stored.
with tf.compat.v1.Session() as sess:
    sess.run(tf.compat.v1.global_variables_initializer())
    grad_values = sess.run(gradients)
    print(grad_values) # Observe the memory usage during this execution.
