import tensorflow as tf

# Define a simple model
model = tf.keras.Sequential([
  tf.keras.layers.Dense(1024, activation='relu', input_shape=(784,)),
  tf.keras.layers.Dense(10)
])

# Define loss and optimizer
loss_fn = tf.keras.losses.CategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()

# Training loop illustrating memory impact with varying batch sizes
batch_sizes = [32, 128, 512]
for batch_size in batch_sizes:
    x_batch = tf.random.normal((batch_size, 784))
    y_batch = tf.random.normal((batch_size, 10))

    with tf.GradientTape() as tape:
        predictions = model(x_batch)
        loss = loss_fn(y_batch, predictions)

    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    # Monitor memory usage here for each batch size.  The larger batch size will consume significantly more RAM.
