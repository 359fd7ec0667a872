import tensorflow as tf

def my_model(x):
  # ... model definition ...
  return y

with tf.GradientTape() as tape:
  y = my_model(x)
  loss = tf.reduce_mean(tf.square(y - target))

gradients = tape.gradient(loss, model.trainable_variables)
#Explicitly delete the tape to release memory
del tape
#Explicitly delete intermediate tensors if needed
del y
del loss

optimizer.apply_gradients(zip(gradients, model.trainable_variables))
