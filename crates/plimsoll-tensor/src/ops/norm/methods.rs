//! How users call the norms.

use smallvec::smallvec;

use super::add::AddLastAxisNorm;
use super::batch::BatchNorm;
use super::batch_add_relu::BatchNormAddRelu;
use super::group::GroupNorm;
use super::last_axis::LastAxisNorm;
use crate::base::error::Result;
use crate::eager::context;
use crate::eager::execute::{Arg, Args, call, execute};
use crate::eager::op::{Op, OpRef};
use crate::eager::tensor::Tensor;
use crate::ops::dropout::Dropout;

/// The output, and mean and variance as constants.
fn batch_norm(op: OpRef, args: Args<'_>) -> Result<(Tensor, Tensor, Tensor)> {
    let outputs = execute(op, args)?;
    let [y, mean, variance] = &outputs[..] else { unreachable!("three outputs") };
    Ok((y.clone(), mean.stop_gradient(), variance.stop_gradient()))
}

/// The sum of `x` and a branch, and its norm.
fn add_norm(
    norm: LastAxisNorm,
    x: &Tensor,
    branch: Tensor,
    rate: f64,
    parameters: &[&Tensor],
) -> Result<(Tensor, Tensor)> {
    let mut op = AddLastAxisNorm { norm, dropout: None };
    op.dropout = Dropout::drawn(op.name(), rate)?;
    let mut args: Args<'_> = smallvec![Arg::Lent(x), Arg::Given(branch)];
    args.extend(parameters.iter().map(|parameter| Arg::Lent(parameter)));
    let mut outputs = execute(OpRef::shipped(op), args)?.into_iter();
    let (Some(sum), Some(normed)) = (outputs.next(), outputs.next()) else { unreachable!("two outputs") };
    Ok((sum, normed))
}

impl Tensor {
    /// Layer norm along the last axis: each line less its mean, divided by `√(variance + eps)`, times `gamma`, plus
    /// `beta`, which have one number per element of a line.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, a tensor that is not of floats; memory that is full.
    #[doc = example!("layer_norm")]
    #[doc(alias = "layer_normalization")]
    #[track_caller]
    pub fn layer_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(LastAxisNorm { eps, is_centred: true }), &[self, gamma, beta])
    }

    /// RMS norm along the last axis: each line divided by `√(mean of squares + eps)`, times `gamma`.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, a tensor that is not of floats; memory that is full.
    #[doc = example!("rms_norm")]
    #[doc(alias = "rms_normalization")]
    #[track_caller]
    pub fn rms_norm(&self, gamma: &Tensor, eps: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(LastAxisNorm { eps, is_centred: false }), &[self, gamma])
    }

    /// The residual sum of `x` and this tensor, and its [`layer_norm`](Tensor::layer_norm), in one op with the bits of
    /// [`dropout`](Tensor::dropout), `add` and the norm. A rate above zero drops elements of this tensor, and takes one draw
    /// of the thread's generator. The sum is written over this tensor where nobody else holds it, and is what is kept
    /// for backward.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, tensors that are not of floats, a rate that is not between 0 and 1; memory that is
    /// full.
    #[doc = example!("into_add_layer_norm")]
    #[track_caller]
    pub fn into_add_layer_norm(
        self,
        x: &Tensor,
        rate: f64,
        gamma: &Tensor,
        beta: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        add_norm(LastAxisNorm { eps, is_centred: true }, x, self, rate, &[gamma, beta])
    }

    /// The residual sum of `x` and this tensor, and its [`rms_norm`](Tensor::rms_norm): see
    /// [`into_add_layer_norm`](Tensor::into_add_layer_norm).
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, tensors that are not of floats, a rate that is not between 0 and 1; memory that is
    /// full.
    #[doc = example!("into_add_rms_norm")]
    #[track_caller]
    pub fn into_add_rms_norm(
        self,
        x: &Tensor,
        rate: f64,
        gamma: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor)> {
        let _line = context::at_callers_line();
        add_norm(LastAxisNorm { eps, is_centred: false }, x, self, rate, &[gamma])
    }

    /// Group norm of `[examples, .., channels]`: the channels of each example make so many equal groups, and each group,
    /// over all its places, less its mean, is divided by `√(variance + eps)`, times `gamma`, plus `beta`, which have one
    /// number per channel.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, channels that do not make so many groups, a tensor that is not of floats; memory
    /// that is full.
    #[doc = example!("group_norm")]
    #[doc(alias = "group_normalization")]
    #[track_caller]
    pub fn group_norm(&self, gamma: &Tensor, beta: &Tensor, groups: usize, eps: f64) -> Result<Tensor> {
        let _line = context::at_callers_line();
        call(OpRef::shipped(GroupNorm { groups, eps }), &[self, gamma, beta])
    }

    /// Batch norm for training, over all axes but the last: each channel less its mean, divided by
    /// `√(variance + eps)`, times `gamma`, plus `beta`. Also returns mean and variance (of the population, divided by
    /// n), in float32 for the 16-bit dtypes; they are constants for running statistics, and no gradient flows through
    /// them.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, a tensor that is not of floats; memory that is full.
    #[doc = example!("batch_norm")]
    #[doc(alias = "batch_normalization")]
    #[track_caller]
    pub fn batch_norm(&self, gamma: &Tensor, beta: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
        let _line = context::at_callers_line();
        let op = BatchNorm { eps, has_relu: false };
        batch_norm(OpRef::shipped(op), [self, gamma, beta].into_iter().map(Arg::Lent).collect())
    }

    /// [`relu`](Tensor::relu) of [`batch_norm`](Tensor::batch_norm), with the same bits, in one op: backward reads what that
    /// of batch norm reads, and `beta`; relu's output is not kept.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, a tensor that is not of floats; memory that is full.
    #[doc = example!("batch_norm_relu")]
    #[track_caller]
    pub fn batch_norm_relu(
        &self,
        gamma: &Tensor,
        beta: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let _line = context::at_callers_line();
        let op = BatchNorm { eps, has_relu: true };
        batch_norm(OpRef::shipped(op), [self, gamma, beta].into_iter().map(Arg::Lent).collect())
    }

    /// [`relu`](Tensor::relu) of the sum of [`batch_norm`](Tensor::batch_norm) and a tensor of this one's shape, with the same
    /// bits, in one op: the end of a residual block. It is written over what is added where nobody else holds that; backward reads
    /// what that of batch norm reads, and the output.
    ///
    /// # Errors
    /// Shapes or dtypes that do not fit, a tensor that is not of floats; memory that is full.
    #[doc = example!("batch_norm_add_relu")]
    #[track_caller]
    pub fn batch_norm_add_relu(
        &self,
        gamma: &Tensor,
        beta: &Tensor,
        added: Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let _line = context::at_callers_line();
        let op = BatchNormAddRelu { norm: BatchNorm { eps, has_relu: false } };
        let mut args: Args<'_> = [self, gamma, beta].into_iter().map(Arg::Lent).collect();
        args.push(Arg::Given(added));
        batch_norm(OpRef::shipped(op), args)
    }

    /// Batch norm with given statistics of each channel, such as running ones.
    ///
    /// # Errors
    /// Shapes that do not fit, a tensor that is not of floats; memory that is full.
    #[track_caller]
    pub fn batch_norm_inference(
        &self,
        gamma: &Tensor,
        beta: &Tensor,
        mean: &Tensor,
        variance: &Tensor,
        eps: f64,
    ) -> Result<Tensor> {
        let _line = context::at_callers_line();
        super::check("batch_norm_inference", self.meta(), &[gamma.meta(), beta.meta()])?;
        let wide = self.dtype().accumulator();
        let scale = variance.cast(wide)?.affine(1.0, eps)?.rsqrt()?.into_mul(&gamma.cast(wide)?)?;
        let shift = beta.cast(wide)?.sub(&mean.cast(wide)?.mul(&scale)?)?;
        self.mul(&scale.cast(self.dtype())?)?.into_add(shift.cast(self.dtype())?)
    }
}
