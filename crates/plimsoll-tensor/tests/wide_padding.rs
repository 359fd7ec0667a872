//! Convolutions whose padding is wider than what a kernel works on at a time: whole strips of it lie beside the image, on
//! either side of it. They give the bits of a convolution over an input that was padded before.

#![forbid(unsafe_code)]

use plimsoll_tensor::{Conv1dConfig, Conv2dConfig, Device, Result, Step, Tensor, set_seed};

#[test]
fn a_wide_padding_is_as_good_as_a_padded_input() -> Result<()> {
    set_seed(3);
    for channels in [1, 3, 16, 64] {
        let (x, weights) = (Tensor::randn([2, 5, channels])?, Tensor::randn([4, 3, channels])?);
        for padding in [1, 7, 700, 9000] {
            for stride in [1, 3, 500] {
                let config = Conv1dConfig::new().stride(stride);
                let padded = x.pad(&[(0, 0), (padding, padding), (0, 0)], 0.0)?;
                let expected = padded.conv1d(&weights, None, &config)?.to_vec::<f32>()?;
                let found = x.conv1d(&weights, None, &config.padding(padding))?.to_vec::<f32>()?;
                assert!(found == expected, "{channels} channels, padding {padding}, stride {stride}");
            }
        }
    }
    Ok(())
}

#[test]
fn so_is_one_of_a_picture() -> Result<()> {
    set_seed(3);
    let (x, weights) = (Tensor::randn([1, 4, 5, 8])?, Tensor::randn([4, 3, 3, 8])?);
    for padding in [1, 40, 150] {
        let config = Conv2dConfig::new();
        let padded = x.pad(&[(0, 0), (padding, padding), (padding, padding), (0, 0)], 0.0)?;
        let expected = padded.conv2d(&weights, None, &config)?.to_vec::<f32>()?;
        let found = x.conv2d(&weights, None, &config.padding(padding))?.to_vec::<f32>()?;
        assert!(found == expected, "padding {padding}");
    }
    Ok(())
}

#[test]
fn a_transposed_convolution_counts_the_taps_that_fall_on_padding() -> Result<()> {
    let device = Device::ghost_cpu();
    let _on = device.enter();
    let (x, weights) = (Tensor::zeros([1, 2, 2, 1])?, Tensor::zeros([1, 500, 500, 1])?);
    let (_, records) =
        Step::traced(&device, || x.conv_transpose2d(&weights, None, &Conv2dConfig::new()).map(drop))?;
    // Every place of the output sees the whole kernel, though most of it lies beside the two by two numbers.
    assert_eq!(records.iter().map(|record| record.cost.flops).sum::<u64>(), 2 * 501 * 501 * 500 * 500);
    Ok(())
}

/// Strides and dilations that a kernel of one tap never uses may be as large as they like, together, too.
#[test]
fn a_kernel_of_one_tap_takes_any_stride_and_dilation() -> Result<()> {
    let (x, weights) = (Tensor::from_slice(&[3f32], [1, 1, 1])?, Tensor::from_slice(&[2f32], [1, 1, 1])?);
    for (stride, dilation) in [(1, 1), ((1 << 40) - 1, (1 << 39) + 1), (7, 1 << 44)] {
        let config = Conv1dConfig::new().stride(stride).dilation(dilation);
        let y = x.conv_transpose1d(&weights, None, &config)?;
        assert_eq!((y.shape().dims(), y.to_vec::<f32>()?), (&[1, 1, 1][..], vec![6.0]));
        assert_eq!(x.conv1d(&weights, None, &config)?.to_vec::<f32>()?, [6.0]);
    }
    Ok(())
}

/// A kernel without channels has no bytes, however many taps it has: nothing is summed, and none of them is gone through, which
/// would take minutes here.
#[test]
fn a_kernel_without_channels_is_not_gone_through() -> Result<()> {
    const TAPS: usize = 4097;
    let config = Conv2dConfig::new().padding(TAPS / 2);
    let x = Tensor::zeros([1, 64, 64, 0])?;
    let transposed = x.conv_transpose2d(&Tensor::zeros([0, TAPS, TAPS, 3])?, None, &config)?;
    let forward = x.conv2d(&Tensor::zeros([3, TAPS, TAPS, 0])?, None, &config)?;
    for y in [transposed, forward] {
        assert_eq!(y.shape().dims(), [1, 64, 64, 3]);
        assert!(y.to_vec::<f32>()?.iter().all(|&sum| sum == 0.0));
    }
    Ok(())
}
