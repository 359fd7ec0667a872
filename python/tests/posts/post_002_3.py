import tensorflow as tf

dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch_size)

for batch_features, batch_labels in dataset:
  with tf.GradientTape() as tape:
    predictions = model(batch_features)
    loss = compute_loss(predictions, batch_labels)

  gradients = tape.gradient(loss, model.trainable_variables)
  optimizer.apply_gradients(zip(gradients, model.trainable_variables))
