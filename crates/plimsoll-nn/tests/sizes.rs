//! Layers of sizes that nobody means well with: what cannot be counted, or has no room, is an error when the layer is built.

#![forbid(unsafe_code)]

use plimsoll_nn::Layer;
use plimsoll_nn::layers::{
    Conv1DTranspose, Conv2D, Conv2DTranspose, Dense, DepthwiseConv2D, Embedding, GRU, LSTM,
    MultiHeadAttention, SimpleRNN,
};
use plimsoll_tensor::{Bytes, Device, Result};

#[test]
fn sizes_that_cannot_be_counted_are_refused() -> Result<()> {
    let _on = Device::separate_cpu().limit(Bytes::mib(1))?.enter();
    // Four gates of 2^62 units, and pairs of kernels and dilations, are nothing or little modulo 2^64.
    for n in [1 << 32, 1 << 61, 1 << 62, (1 << 63) + 1, usize::MAX - 1, usize::MAX] {
        let refused = [
            ("dense", Dense::new(n).build([3]).is_err()),
            ("lstm", LSTM::new(n).build([2, 3]).is_err()),
            ("gru", GRU::new(n).build([2, 3]).is_err()),
            ("rnn", SimpleRNN::new(n).build([2, 3]).is_err()),
            ("attention", MultiHeadAttention::new(1).build([2, n]).is_err()),
            ("kernel", Conv2D::new(2, [n, n]).same().build([4, 4, 3]).is_err()),
            ("filters", Conv2D::new(n, [3, 3]).build([4, 4, 3]).is_err()),
            ("dilation", Conv2D::new(2, [3, 3]).dilation([n, n]).same().build([4, 4, 3]).is_err()),
            ("transposed kernel", Conv2DTranspose::new(2, [n, 3]).same().build([4, 4, 3]).is_err()),
            ("transposed stride", Conv1DTranspose::new(2, [3]).stride([n]).same().build([4, 3]).is_err()),
            ("multiplier", DepthwiseConv2D::new([3, 3]).depth_multiplier(n).build([4, 4, 3]).is_err()),
            ("embedding", Embedding::new(n, n).build([3]).is_err()),
        ];
        for (layer, is_refused) in refused {
            assert!(is_refused, "{layer} of {n}");
        }
    }
    Ok(())
}
