import tensorflow as tf

# ... model definition ...

for epoch in range(num_epochs):
    for batch in tf.data.Dataset.from_tensor_slices(data).batch(batch_size).prefetch(tf.data.AUTOTUNE):
        with tf.GradientTape() as tape:
            predictions = model(batch[0])
            loss = loss_function(predictions, batch[1])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
