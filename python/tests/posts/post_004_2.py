import tensorflow as tf
import time

@tf.function
def run_model_in_tf_function(x):
    model = tf.keras.models.Sequential([
      tf.keras.layers.Dense(100, activation='relu', input_shape=(10,)),
      tf.keras.layers.Dense(10)
  ])
    y = model(x)
    return y

x = tf.random.normal((1, 10))
run_model_in_tf_function(x)
del run_model_in_tf_function
print("Function disposed...")
time.sleep(5)  # Memory may still be occupied, as the cached graph might linger
tf.keras.backend.clear_session() #Explicitly clears session to remove graph
print("Session cleared...")
time.sleep(5)
