//! Options that several layers have, declared once: a layer calls the macro inside its `impl`.
//!
//! They are methods of each layer, and not of a trait, so that a user needs nothing in scope to find them.

/// Options of a convolution over `$n` axes of places, with fields of these names.
macro_rules! convolution_options {
    ($n:expr) => {
        /// This layer with so many places from one output to the next.
        #[doc(alias = "strides")]
        pub fn stride(self, stride: impl IntoExtents<$n>) -> Self {
            Self { stride: stride.into_extents(), ..self }
        }

        /// This layer with so many places from one tap of the kernel to the next.
        #[doc(alias = "dilation_rate")]
        pub fn dilation(self, dilation: impl IntoExtents<$n>) -> Self {
            Self { dilation: dilation.into_extents(), ..self }
        }

        /// This layer with its sums going through a function.
        pub fn activation(self, activation: Activation) -> Self {
            Self { activation, ..self }
        }

        /// This layer without a bias.
        #[doc(alias = "use_bias")]
        pub fn no_bias(self) -> Self {
            Self { bias: None, ..self }
        }

        /// This layer with a kernel that starts otherwise.
        pub fn kernel_initializer(self, initializer: Initializer) -> Self {
            Self { initializer, ..self }
        }

        /// This layer with a bias that starts otherwise.
        pub fn bias_initializer(self, bias: Initializer) -> Self {
            Self { bias: Some(bias), ..self }
        }
    };
}

/// Options of a recurrent layer, which has `settings`.
macro_rules! recurrent_options {
    () => {
        /// This layer giving the hidden states of all steps.
        pub fn return_sequences(mut self) -> Self {
            self.settings.sequences = true;
            self
        }

        /// This layer without a bias.
        #[doc(alias = "use_bias")]
        pub fn no_bias(mut self) -> Self {
            self.settings.bias = None;
            self
        }

        /// This layer with a kernel that starts otherwise.
        pub fn kernel_initializer(mut self, kernel: Initializer) -> Self {
            self.settings.kernel = kernel;
            self
        }

        /// This layer with a recurrent kernel that starts otherwise.
        pub fn recurrent_initializer(mut self, recurrent: Initializer) -> Self {
            self.settings.recurrent = recurrent;
            self
        }

        /// This layer with a bias that starts otherwise.
        pub fn bias_initializer(mut self, bias: Initializer) -> Self {
            self.settings.bias = Some(bias);
            self
        }
    };
}

pub(super) use {convolution_options, recurrent_options};
