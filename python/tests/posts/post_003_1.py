import tensorflow as tf

# ... model definition ...

for epoch in range(num_epochs):
    for batch in dataset:
        with tf.GradientTape() as tape:
            predictions = model(batch['inputs'])
            loss = loss_function(predictions, batch['labels'])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        # Missing crucial memory management here!

