import tensorflow as tf
import time

def create_and_dispose():
  model = tf.keras.models.Sequential([
      tf.keras.layers.Dense(100, activation='relu', input_shape=(10,)),
      tf.keras.layers.Dense(10)
  ])
  _ = model(tf.random.normal((1, 10))) # Dummy forward pass
  del model
  print("Model disposed...")

create_and_dispose()
time.sleep(5) # Allow time for observation, memory will likely still be used
