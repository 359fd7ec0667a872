import tensorflow as tf

x = tf.Variable(1.0)
with tf.GradientTape(persistent=True) as tape:
  y = x * x
  z = y * y

dz_dx = tape.gradient(z, x) # Compute gradient of z with respect to x
dy_dx = tape.gradient(y, x) # Compute gradient of y with respect to x
del tape # Explicitly delete the tape to release memory

print(dz_dx, dy_dx)
