import tensorflow as tf
import time

def train_with_scope(data):
    with tf.device("/GPU:0"):
      model = tf.keras.models.Sequential([
          tf.keras.layers.Dense(100, activation='relu', input_shape=(10,)),
          tf.keras.layers.Dense(10)
      ])
      optimizer = tf.keras.optimizers.Adam(learning_rate=0.001)
      loss_fn = tf.keras.losses.CategoricalCrossentropy()

      for i in range(5):
        with tf.GradientTape() as tape:
          logits = model(data)
          loss = loss_fn(tf.one_hot(tf.random.uniform((1, ), minval=0, maxval=10, dtype=tf.int32), 10), logits)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))

      print("Training Complete within scope")


data = tf.random.normal((1, 10))
train_with_scope(data)
time.sleep(5) # Even with scope exit, memory may still persist.

