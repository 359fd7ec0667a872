import tensorflow as tf

@tf.function
def my_model(x):
  # ... model definition ...
  return y

# ... training loop ...
y = my_model(x)
loss = tf.reduce_mean(tf.square(y-target))
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
